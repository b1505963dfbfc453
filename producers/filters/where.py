"""A WHERE over one table version, compiled once into Python code.

SQL has three truth values, and a row passes if the WHERE is true. So each condition becomes two
expressions: one for when it is true, one for when it is false. With NULL neither holds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from event_token.errors import UsageError
from producers.filters.comparisons import (
    Bounded,
    check_numbers,
    collation_of_like,
    comparison,
    membership,
)
from producers.filters.errors import RuleError
from producers.filters.like import bytes_like_test, like_test
from producers.filters.source_column import SourceColumn
from producers.filters.where_tree import (
    AllOf,
    AnyOf,
    Between,
    ColumnRef,
    Compare,
    Condition,
    In,
    InKeyRange,
    IsNull,
    Like,
    Not,
)
from topics.keyspace.vindexes import Vindex, vindex_named
from topics.records.table_shape import ValueKind

# Takes the values of `Where.columns`, in their order.
Predicate = Callable[..., bool]


@dataclass(frozen=True, slots=True)
class Where:
    """A compiled WHERE: a row passes if `predicate` returns True.

    `columns` are the indexes of the table's columns whose raw values it takes, in this order.
    """

    predicate: Predicate
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Code:
    """A condition as two Python expressions: when it is true, and when it is false."""

    true: str
    false: str


def compile_where(
    condition: Condition, columns: Sequence[SourceColumn], sharding: tuple[str, Vindex] | None
) -> Where:
    """Compile for a table with these columns; `sharding`: its column and vindex in the topology.

    RuleError on a missing column, and on what cannot be evaluated exactly as the server does.
    """
    compiler = _Compiler(columns, sharding)
    code = compiler.compile(condition)
    names = ", ".join(f"v{i}" for i in range(len(compiler.used)))
    try:
        # Built from the pieces below: text of the rule is only in the constants.
        predicate = eval(f"lambda {names}: {code.true}", compiler.constants)  # noqa: S307
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise RuleError("the WHERE is nested too deeply") from error
    return Where(predicate, tuple(compiler.used))


class _Compiler:
    def __init__(
        self, columns: Sequence[SourceColumn], sharding: tuple[str, Vindex] | None
    ) -> None:
        # Column names are the same in any case.
        self._columns: Mapping[str, int] = {c.name.lower(): i for i, c in enumerate(columns)}
        self._all = columns
        self._sharding = sharding
        self.used: list[int] = []
        self.constants: dict[str, Any] = {}

    def compile(self, condition: Condition) -> _Code:
        match condition:
            case AllOf(terms):
                codes = [self.compile(term) for term in terms]
                false = _join("or", [c.false for c in codes])
                return _Code(_join("and", [c.true for c in codes]), false)
            case AnyOf(terms):
                codes = [self.compile(term) for term in terms]
                false = _join("and", [c.false for c in codes])
                return _Code(_join("or", [c.true for c in codes]), false)
            case Not(term):
                code = self.compile(term)
                return _Code(code.false, code.true)
            case Compare(operator, ref, literal):
                value, column = self._column(ref)
                test = self._test(value, comparison(column, ref, operator, literal))
                if operator != "<=>":
                    return _known(value, test)
                true = f"({value} is not None and {test})"
                return _Code(true, f"(not {true})")
            case In(ref, literals):
                value, column = self._column(ref)
                return _known(value, self._test(value, membership(column, ref, literals)))
            case Between(ref, low, high):
                check_numbers(self._column(ref)[1], (low, high))
                return self.compile(AllOf((Compare(">=", ref, low), Compare("<=", ref, high))))
            case Like(ref, pattern, escape):
                return self._like(ref, pattern, escape)
            case IsNull(ref):
                return self._is_null(ref)
            case InKeyRange():
                return self._in_key_range(condition)

    def _column(self, ref: ColumnRef) -> tuple[str, SourceColumn]:
        """Return the name of a column's value in the code, and the column."""
        index = self._columns.get(ref.name.lower())
        if index is None:
            names = ", ".join(column.name for column in self._all)
            raise RuleError(f"there is no column {ref.name}; there are {names}")
        if index not in self.used:
            self.used.append(index)
        return f"v{self.used.index(index)}", self._all[index]

    def _constant(self, value: object) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def _test(self, value: str, test: Callable[[Any], bool] | Bounded) -> str:
        """Return the code that tests a value that is not NULL."""
        if isinstance(test, Bounded):
            return f"{value} {test.operator} {self._constant(test.bound)}"
        return f"{self._constant(test)}({value})"

    def _like(self, ref: ColumnRef, pattern: str, escape: str) -> _Code:
        value, column = self._column(ref)
        is_bytes = collation_of_like(column, ref, pattern) is None
        test = bytes_like_test(pattern, escape) if is_bytes else like_test(pattern, escape)
        return _known(value, self._test(value, test))

    def _is_null(self, ref: ColumnRef) -> _Code:
        value, column = self._column(ref)
        if column.kind in (ValueKind.DATE, ValueKind.DATETIME) and not column.nullable:
            raise RuleError(
                f"column {column.name} is NOT NULL: servers treat its zero dates as NULL in some "
                f"places, so IS NULL of it is refused"
            )
        return _Code(f"{value} is None", f"{value} is not None")

    def _in_key_range(self, condition: InKeyRange) -> _Code:
        if condition.column is not None:
            name, vindex = condition.column.name, vindex_named(condition.vindex)
        elif self._sharding is not None:
            name, vindex = self._sharding
        else:
            raise RuleError("in_keyrange: the table has no vindex in the topology")
        value, column = self._column(ColumnRef(name))
        try:
            vindex.check_column(column.column)
        except UsageError as error:
            raise RuleError(f"in_keyrange: {error}") from error
        contains = self._constant(condition.key_range.contains)
        true = f"{contains}({self._constant(vindex.keyspace_id)}({value}))"
        return _Code(true, f"(not {true})")


def _known(value: str, test: str) -> _Code:
    """Return a test that NULL neither passes nor fails."""
    return _Code(f"({value} is not None and {test})", f"({value} is not None and not {test})")


def _join(operator: str, expressions: Sequence[str]) -> str:
    return "(" + f" {operator} ".join(expressions) + ")"
