"""A WHERE over one table version: closures with SQL's three truth values, made once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from event_token.errors import UsageError
from producers.filters.comparisons import check_numbers, collation_of_like, comparison, membership
from producers.filters.like import bytes_like_test, like_test
from producers.filters.source_column import SourceColumn
from producers.filters.where_syntax import (
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
    RuleError,
)
from topics.table_shape import ValueKind
from topics.vindexes import Vindex, vindex_named

# True, False, or None for SQL's UNKNOWN. Values stand in the order of `Where.columns`.
Predicate = Callable[[Sequence[object]], bool | None]


@dataclass(frozen=True, slots=True)
class Where:
    """A compiled WHERE: a row is wanted when `predicate` is True, not when it is None.

    `columns` are the indexes of the table's columns whose raw values it takes, in this order.
    """

    predicate: Predicate
    columns: tuple[int, ...]


def compile_where(
    condition: Condition, columns: Sequence[SourceColumn], sharding: tuple[str, Vindex] | None
) -> Where:
    """Compile for a table with these columns; `sharding`: its column and vindex in the topology.

    RuleError on a missing column, and on what cannot be decided exactly as the server would.
    """
    compiler = _Compiler(columns, sharding)
    predicate = compiler.compile(condition)
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

    def compile(self, condition: Condition) -> Predicate:
        match condition:
            case AllOf(terms):
                return _all([self.compile(term) for term in terms])
            case AnyOf(terms):
                return _any([self.compile(term) for term in terms])
            case Not(term):
                return _not(self.compile(term))
            case Compare(operator, ref, literal):
                slot, column = self._column(ref)
                test = comparison(column, ref, operator, literal)
                return _null_safe(slot, test) if operator == "<=>" else _known(slot, test)
            case In(ref, literals):
                slot, column = self._column(ref)
                return _known(slot, membership(column, ref, literals))
            case Between(ref, low, high):
                check_numbers(self._column(ref)[1], (low, high))
                low_end = self.compile(Compare(">=", ref, low))
                return _all([low_end, self.compile(Compare("<=", ref, high))])
            case Like(ref, pattern, escape):
                return self._like(ref, pattern, escape)
            case IsNull(ref):
                return self._is_null(ref)
            case InKeyRange():
                return self._in_key_range(condition)

    def _column(self, ref: ColumnRef) -> tuple[int, SourceColumn]:
        """The place of a column's value, and the column."""
        index = self._columns.get(ref.name.lower())
        if index is None:
            names = ", ".join(column.name for column in self._all)
            raise RuleError(f"there is no column {ref.name}; there are {names}")
        if index not in self.used:
            self.used.append(index)
        return self.used.index(index), self._all[index]

    def _like(self, ref: ColumnRef, pattern: str, escape: str) -> Predicate:
        slot, column = self._column(ref)
        if collation_of_like(column, ref, pattern) is None:
            return _known(slot, bytes_like_test(pattern, escape))
        return _known(slot, like_test(pattern, escape))

    def _is_null(self, ref: ColumnRef) -> Predicate:
        slot, column = self._column(ref)
        if column.kind in (ValueKind.DATE, ValueKind.DATETIME) and not column.nullable:
            raise RuleError(
                f"column {column.name} is NOT NULL: servers take its zero dates for NULL in some "
                f"places, so IS NULL of it is refused"
            )
        return lambda values: values[slot] is None

    def _in_key_range(self, condition: InKeyRange) -> Predicate:
        if condition.column is not None:
            name, vindex = condition.column.name, vindex_named(condition.vindex)
        elif self._sharding is not None:
            name, vindex = self._sharding
        else:
            raise RuleError("in_keyrange: the table has no vindex in the topology")
        slot, column = self._column(ColumnRef(name))
        try:
            vindex.check_column(column.column)
        except UsageError as error:
            raise RuleError(f"in_keyrange: {error}") from error
        contains, keyspace_id = condition.key_range.contains, vindex.keyspace_id
        return lambda values: contains(keyspace_id(values[slot]))  # type: ignore[arg-type]


def _known(slot: int, test: Callable[[Any], bool]) -> Predicate:
    def run(values: Sequence[object]) -> bool | None:
        value = values[slot]
        return None if value is None else test(value)

    return run


def _null_safe(slot: int, test: Callable[[Any], bool]) -> Predicate:
    return lambda values: values[slot] is not None and test(values[slot])


def _not(term: Predicate) -> Predicate:
    def run(values: Sequence[object]) -> bool | None:
        found = term(values)
        return None if found is None else not found

    return run


def _all(terms: Sequence[Predicate]) -> Predicate:
    def run(values: Sequence[object]) -> bool | None:
        found: bool | None = True
        for term in terms:
            each = term(values)
            if each is False:
                return False
            if each is None:
                found = None
        return found

    return run


def _any(terms: Sequence[Predicate]) -> Predicate:
    def run(values: Sequence[object]) -> bool | None:
        found: bool | None = False
        for term in terms:
            each = term(values)
            if each is True:
                return True
            if each is None:
                found = None
        return found

    return run
