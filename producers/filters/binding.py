"""A rule applied to one table version: which columns are written, and how rows are chosen."""

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

from event_token.errors import UsageError
from producers.decoder.tables.plan import NO_ROW_END, FilterPlan, MaskedColumn, RangeTest, TablePlan
from producers.decoder.tables.server_columns import ShardingColumn, written_plan
from producers.decoder.values import operations as ops
from producers.filters.conditions import AllOf, Between, Compare, Condition, IsNull, Not, RuleError
from producers.filters.rules import (
    KEY_ID_CHARS_MAX,
    FilterRule,
    FilterSettings,
    Mask,
    MaskKind,
)
from producers.filters.where import (
    Bounded,
    SourceColumn,
    Where,
    collation_name,
    comparison,
    compile_where,
)
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import Vindex, vindex_named
from topics.records.table_shape import DECIMAL_FIXED_DIGITS, Column, ValueKind

# An id, a colon and the digits of SHA-256. The same with and without an id, so that another key is
# not another version of the table.
HMAC_CHARS_MAX: Final = KEY_ID_CHARS_MAX + 1 + 64
_EXACT: Final = Context(prec=200)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGERS: Final = frozenset(
    (ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG, ValueKind.YEAR)
)

# From a raw value that is not NULL (see producers.filters.where) to its replacement.
MaskFunction = Callable[[Any], str | bytes | None]


def masked_column(column: SourceColumn, mask: Mask) -> Column:
    """Return the column as readers see it; not for DROP. RuleError if it cannot be truncated."""
    if mask.kind is MaskKind.TRUNCATE and column.kind not in (ValueKind.STRING, ValueKind.BYTES):
        raise RuleError(f"column {column.name} ({column.column.sql_type}) cannot be truncated")
    if mask.kind is MaskKind.HMAC:
        return Column(column.name, ValueKind.STRING, f"varchar({HMAC_CHARS_MAX})")
    return column.column


def mask_function(column: SourceColumn, mask: Mask, key: bytes, key_id: str) -> MaskFunction:
    """Return what replaces values. RuleError if the mask does not fit the column.

    An HMAC begins with the id of its key, if it has one: a reader compares values of one key alone.
    """
    if mask.kind is MaskKind.NULL:
        return lambda _: None
    if mask.kind is MaskKind.TRUNCATE:
        length = mask.length
        return lambda value: value[:length]
    text_of = _text_of(column)
    before = f"{key_id}:" if key_id else ""
    return lambda value: before + hmac.digest(key, text_of(value), "sha256").hex()


def _text_of(column: SourceColumn) -> Callable[[Any], bytes]:
    """Return what is hashed: the value as the server prints it, so that all shards agree."""
    kind = column.kind
    if kind is ValueKind.BYTES:
        return bytes
    if kind in (ValueKind.STRING, ValueKind.ENUM):
        return str.encode
    if kind in _INTEGERS:
        return lambda value: b"%d" % value
    if kind is ValueKind.DECIMAL:
        exponent = -column.column.scale
        return lambda value: f"{_EXACT.scaleb(Decimal(value), exponent):f}".encode()
    if kind is ValueKind.DATE:
        return _date_text
    raise RuleError(
        f"column {column.name} ({column.column.sql_type}) cannot be replaced by an HMAC: its "
        f"values can be printed in more than one way; use drop or null"
    )


def _date_text(value: int | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return f"{_EPOCH + timedelta(days=value):%Y-%m-%d}".rjust(10, "0").encode()


# The limits of 64 bits; constants near them are left to the compiled predicate.
_LOWEST: Final = -(1 << 63)
_HIGHEST: Final = (1 << 63) - 1
_BOUND_MAX: Final = 1 << 62
_OPERATORS: Final = frozenset(("=", "<", "<=", ">", ">="))


@dataclass(frozen=True, slots=True)
class Range:
    """Passed by rows whose raw value in column index `column` is not NULL and in low..high."""

    column: int
    low: int
    high: int


def split_ranges(
    condition: Condition, columns: Sequence[SourceColumn]
) -> tuple[list[Range], Condition | None]:
    """Split a condition that compiles into ranges and the rest, all of which must be true."""
    places = {column.name.lower(): i for i, column in enumerate(columns)}
    found: dict[int, Range] = {}
    rest: list[Condition] = []
    for term in _terms(condition):
        span = _range(term, columns, places)
        if span is None:
            rest.append(term)
        else:
            known = found.get(span.column, span)
            low, high = max(span.low, known.low), min(span.high, known.high)
            found[span.column] = Range(span.column, low, high)
    return list(found.values()), AllOf(tuple(rest)) if rest else None


def _terms(condition: Condition) -> Iterator[Condition]:
    """Yield the terms that AND joins."""
    match condition:
        case AllOf(terms):
            for term in terms:
                yield from _terms(term)
        case Between(ref, low, high):
            yield Compare(">=", ref, low)
            yield Compare("<=", ref, high)
        case _:
            yield condition


def _range(
    term: Condition, columns: Sequence[SourceColumn], places: Mapping[str, int]
) -> Range | None:
    match term:
        case Compare(operator, ref, literal) if operator in _OPERATORS:
            index = places[ref.name.lower()]
            test = comparison(columns[index], ref, operator, literal)
            bound = test.bound if isinstance(test, Bounded) else None
            if not _is_whole(columns[index]) or not isinstance(bound, int):
                return None
            if not -_BOUND_MAX < bound < _BOUND_MAX:
                return None
            low = {"=": bound, ">=": bound, ">": bound + 1}.get(operator, _LOWEST)
            high = {"=": bound, "<=": bound, "<": bound - 1}.get(operator, _HIGHEST)
            return Range(index, low, high)
        case Not(IsNull(ref)):
            index = places[ref.name.lower()]
            return Range(index, _LOWEST, _HIGHEST) if _is_whole(columns[index]) else None
        case _:
            return None


def _is_whole(column: SourceColumn) -> bool:
    """Tell whether raw values are integers of at most 64 bits."""
    if column.kind is ValueKind.DECIMAL:
        return column.column.precision <= DECIMAL_FIXED_DIGITS
    return column.kind in (ValueKind.INT, ValueKind.LONG)


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column that is written: its index in the table, and what replaces its values."""

    index: int
    column: Column
    mask: MaskFunction | None


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule compiled for a table version. A row passes if it passes all `ranges` and `where`."""

    outputs: tuple[OutputColumn, ...]
    ranges: tuple[Range, ...]
    where: Where | None


def bind_rule(
    rule: FilterRule,
    columns: Sequence[SourceColumn],
    primary_key: Sequence[int],
    sharding: tuple[str, Vindex] | None,
    hmac_key: bytes,
    hmac_key_id: str = "",
    row_end: Sequence[int] = (),
) -> BoundRule:
    """Compile a rule for a table version. RuleError names the column that does not fit.

    `primary_key`, `row_end`: column indexes. Record keys are built from the former, and without the
    latter readers could not tell present rows from history, so they must be written.
    """
    needed = {*primary_key, *row_end}
    indexes = {column.name.lower(): i for i, column in enumerate(columns)}
    for name in (*rule.columns, *rule.masks):
        if name.lower() not in indexes:
            names = ", ".join(column.name for column in columns)
            raise RuleError(f"there is no column {name}; there are {names}")
    masks = {indexes[name.lower()]: mask for name, mask in rule.masks.items()}
    listed = {indexes[name.lower()] for name in rule.columns} or set(indexes.values())
    outputs = []
    for i, column in enumerate(columns):
        mask = masks.get(i)
        if sharding is not None and mask is not None and column.name.lower() == sharding[0].lower():
            raise RuleError(
                f"column {column.name} is masked, but it is the sharding column: keyspace ids are "
                f"computed from it and reveal its value"
            )
        if i not in listed or (mask is not None and mask.kind is MaskKind.DROP):
            if i in needed:
                raise RuleError(f"column {column.name} is left out, but it is in the primary key")
        elif mask is None:
            outputs.append(OutputColumn(i, column.column, None))
        elif i in needed and mask.kind is not MaskKind.HMAC:
            raise RuleError(
                f"column {column.name} is in the primary key: of all masks, only hmac keeps keys "
                f"apart"
            )
        elif mask.kind is MaskKind.HMAC and hmac_key_id and (i in needed or not primary_key):
            place = "in the primary key" if i in needed else "in a table without a primary key"
            raise RuleError(
                f"column {column.name} is {place}, so readers find rows by its masked value, and "
                f"with another key would not find those that they have: use an hmac_key without "
                f"an id, which never changes"
            )
        else:
            function = mask_function(column, mask, hmac_key, hmac_key_id)
            outputs.append(OutputColumn(i, masked_column(column, mask), function))
    condition = rule.condition
    if condition is None:
        return BoundRule(tuple(outputs), (), None)
    where: Where | None = compile_where(condition, columns, sharding)  # every term must compile
    ranges, rest = split_ranges(condition, columns)
    if ranges:
        where = None if rest is None else compile_where(rest, columns, sharding)
    return BoundRule(tuple(outputs), tuple(ranges), where)


class TableFilters:
    """The rules of one stream; implements the decoder's `FilterRules`."""

    def __init__(
        self,
        settings: FilterSettings,
        vindexes: Mapping[tuple[str, str], ShardingColumn],
        check_tables: Callable[[], None] | None = None,
    ) -> None:
        """`vindexes`: the sharding columns, which in_keyrange uses and masks may not hide.

        `check_tables` is called after a DDL; it raises if the rules do not fit the server's tables.
        """
        self._check_tables = check_tables
        self._settings = settings
        self._vindexes = vindexes

    def definitions_changed(self) -> None:
        """Check that the rules still fit the tables, which may have changed."""
        if self._check_tables is not None:
            self._check_tables()

    def leaves_out(self, database: str, table: str) -> bool:
        """Tell whether no row of the table is wanted."""
        return not self._settings.includes(database, table)

    def leaves_out_database(self, database: str) -> bool:
        """Tell whether surely no table of the database is wanted."""
        return self._settings.leaves_out_database(database)

    def asks_for(self, database: str, table: str) -> bool:
        """Tell whether a rule that is about this database alone includes the table."""
        return self._settings.asks_for(database, table)

    def filter_plan(self, table: TablePlan) -> FilterPlan | None:
        """Return what to do with the table's rows; RuleError where its rule does not fit it."""
        rule = self._settings.rule_for(table.database, table.table)
        if rule is None:
            return None
        sharding = self._vindexes.get((table.database, table.table))
        bound = bind_rule(
            rule,
            source_columns(table),
            table.primary_key,
            None if sharding is None else (sharding.column, sharding.vindex),
            self._settings.hmac_key,
            self._settings.hmac_key_id,
            [] if table.row_end == NO_ROW_END else [int(table.row_end)],
        )
        return _filter_plan(table, bound)


def source_columns(table: TablePlan) -> list[SourceColumn]:
    """Return the columns of a table version as rules see them."""
    return [
        SourceColumn(
            shape_column,
            collation_name(int(plan.collation), plan.charset) if plan.collation else "",
            plan.nullable,
            shape_column.sql_type if plan.op >= ops.UUID else "",
        )
        for plan, shape_column in zip(table.columns, table.shape_columns, strict=True)
    ]


def _filter_plan(table: TablePlan, bound: BoundRule) -> FilterPlan:
    outputs = bound.outputs
    written = written_plan(
        table, [each.index for each in outputs], [each.column for each in outputs]
    )
    columns = [
        MaskedColumn(table.columns[output.index], column, output.mask)
        for output, column in zip(outputs, written.columns, strict=True)
    ]
    where = bound.where
    return FilterPlan(
        table,
        written,
        columns,
        ranges=[
            RangeTest(table.columns[each.column], each.low, each.high) for each in bound.ranges
        ],
        predicate=None if where is None else where.predicate,
        predicate_columns=[] if where is None else [table.columns[i] for i in where.columns],
    )


def sharding_columns(vindexes: Iterable[TableVindex]) -> dict[tuple[str, str], ShardingColumn]:
    """Return the sharding column of each (database, table).

    UsageError on an unknown vindex, on several columns (all vindexes here take one), and on a
    table that is declared twice.
    """
    found: dict[tuple[str, str], ShardingColumn] = {}
    for entry in vindexes:
        table = f"{entry.database}.{entry.table}"
        if len(entry.columns) != 1:
            raise UsageError(
                f"table {table}: vindex {entry.vindex} takes one column, and is declared over "
                f"{', '.join(entry.columns) or 'none'}"
            )
        if (entry.database, entry.table) in found:
            raise UsageError(f"table {table}: two vindexes are declared, it can have one")
        vindex = vindex_named(entry.vindex)
        found[entry.database, entry.table] = ShardingColumn(entry.columns[0], vindex)
    return found
