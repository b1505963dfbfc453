"""What one reader of a stream wants of each event: columns, rows of a condition, row images. Pure.

The condition is the WHERE of a filter rule, with the same grammar and the same three-valued logic.
It is evaluated on the values in the log, so what only the server knows of a column is not there:
text has no collation, and a comparison of text has to name one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context
from enum import StrEnum
from typing import Any, Final

from event_token.errors import UsageError
from producers.filters.conditions import AllOf, AnyOf, ColumnRef, Condition, InKeyRange, Not
from producers.filters.where import BINARY, KEYSPACE_ID_NAME, SourceColumn, compile_where
from topics.errors import RowImageMissing
from topics.reading.row_filters import with_images
from topics.records.table_shape import DECIMAL_DIGITS_MAX, Column, TableShape, ValueKind
from topics.records.vevent import EventType, InvalidDate, Row, VEvent

# Table versions whose plans are kept; a stream that mixes more makes plans again.
PLANS_MAX: Final = 1_024
# Stands for the keyspace id of a row image.
_KEYSPACE_ID: Final = Column(KEYSPACE_ID_NAME, ValueKind.BYTES, "keyspace id")
# The log has text as Unicode, whatever the column's character set is.
_UNKNOWN_COLLATION: Final = "utf8mb4 (its collation is not in the log)"
_BINARY_TYPES: Final = frozenset(
    ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
)
_HIDDEN_TYPES: Final = frozenset(("uuid", "inet4", "inet6"))
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS_MAX)
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Images(StrEnum):
    """Which columns the row images of an event have.

    NONE: those of the primary key. AFTER: all of the row after the change, and of the row before it
    those of the key. BOTH: all.
    """

    NONE = "none"
    AFTER = "after"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class _RowTest:
    """A condition compiled for a table version, and the columns whose values it takes."""

    predicate: Callable[..., Any]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is done with the rows of one table version: `source`, delivered as `shape`.

    `before` and `after`: the names of the columns that stay in each image, None for all.
    """

    source: TableShape
    shape: TableShape
    test: _RowTest | None
    before: frozenset[str] | None
    after: frozenset[str] | None

    @property
    def cuts(self) -> bool:
        """Whether an image loses columns."""
        return self.before is not None or self.after is not None


class StreamFilter:
    """Chooses and cuts events for one reader; not to be shared by threads.

    `columns`: names, empty for all; the primary key is always there. `where`: text, None for every
    row. Both apply to every table that the reader gets, so a reader of several tables names what
    all of them have.
    """

    def __init__(
        self,
        *,
        columns: Sequence[str] = (),
        where: str | None = None,
        images: Images = Images.BOTH,
    ) -> None:
        """Parse the condition; UsageError (RuleError) says what in it is not supported."""
        if columns and images is Images.NONE:
            raise UsageError("images none leaves the primary key alone, so it takes no columns")
        self._columns = tuple(columns)
        self._images = images
        self._where = where
        self._condition: Condition | None = None
        if where is not None:
            # Here, because a reader without a condition needs no SQL parser.
            from producers.filters.where_syntax import parse_where  # noqa: PLC0415

            self._condition = parse_where(where)
        self._plans: dict[int, _Plan] = {}

    def apply(self, event: VEvent) -> VEvent | None:
        """Return what the reader gets of an event, None for nothing.

        A row is delivered if the condition is true of it. An update that enters or leaves what the
        condition describes becomes an INSERT or a DELETE. Events that are no rows always pass.
        UsageError if the table lacks a column, cannot be compared so, or has no key that `images`
        needs; RowImageMissing (Halt) if a row image lacks what the condition needs.
        """
        if event.type is not EventType.ROW or event.shape is None:
            return event
        plan = self._plan(event.shape)
        found: VEvent | None = event
        if plan.test is not None:
            found = with_images(
                event,
                before=self._passes(plan.test, event, event.before, event.keyspace_id_before),
                after=self._passes(plan.test, event, event.after, event.keyspace_id_after),
            )
        if found is None or (found is event and not plan.cuts):
            return found
        return replace(
            found,
            before=_cut(found.before, plan.before),
            after=_cut(found.after, plan.after),
            shape=plan.shape,
            record=b"",  # it is the record of the whole row
        )

    def _plan(self, shape: TableShape) -> _Plan:
        # By identity: all rows of a table version share one shape, which is long to compare.
        found = self._plans.get(id(shape))
        if found is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            try:
                found = self._plans[id(shape)] = self._made_plan(shape)
            except UsageError as error:
                raise UsageError(f"table {shape.database}.{shape.table}: {error}") from error
        return found

    def _made_plan(self, shape: TableShape) -> _Plan:
        key = frozenset(shape.columns[i].name for i in shape.primary_key)
        if self._images is not Images.BOTH and not key:
            raise UsageError(
                f"it has no primary key, so images {self._images} cannot name its rows: take both"
            )
        wanted = _named_columns(shape, self._columns)
        test = None if self._condition is None else _row_test(shape, self._condition)
        before = wanted if self._images is Images.BOTH else key
        after = key if self._images is Images.NONE else wanted
        kept = None if before is None or after is None else before | after
        return _Plan(shape, _shape_of(shape, kept), test, before, after)

    def _passes(
        self, test: _RowTest, event: VEvent, row: Row | None, keyspace_id: bytes | None
    ) -> bool | None:
        """Return whether the condition is true of a row image; None if there is no such image."""
        if row is None:
            return None
        try:
            values = [_raw(event, row, keyspace_id, column) for column in test.columns]
            return bool(test.predicate(*values))
        except UsageError as error:
            raise UsageError(f"{_place(event)}: {self._where}: {error}") from error


def parse_columns(text: str) -> tuple[str, ...]:
    """Return the names of `id, total`; UsageError for an empty or repeated one."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len({name.lower() for name in names}) < len(names):
        raise UsageError(f"columns {text!r}: write different names with commas between them")
    return names


def _named_columns(shape: TableShape, names: Sequence[str]) -> frozenset[str] | None:
    """Return the columns of these names and those that readers cannot do without; None for all."""
    if not names:
        return None
    # Column names are the same in any case.
    known = {column.name.lower(): i for i, column in enumerate(shape.columns)}
    for name in names:
        if name.lower() not in known:
            raise UsageError(
                f"there is no column {name}; there are "
                f"{', '.join(column.name for column in shape.columns)}. A reader of several tables "
                "names columns that all of them have, or one table"
            )
    # Without row_end, rows of the present and of history look alike.
    needed = {*shape.primary_key, *([] if shape.row_end is None else [shape.row_end])}
    indexes = needed | {known[name.lower()] for name in names}
    return frozenset(shape.columns[i].name for i in indexes)


def _shape_of(shape: TableShape, kept: frozenset[str] | None) -> TableShape:
    """Return the table version with these columns alone, of which the key's are some."""
    if kept is None:
        return shape
    indexes = [i for i, column in enumerate(shape.columns) if column.name in kept]
    places = {index: place for place, index in enumerate(indexes)}
    return replace(
        shape,
        columns=tuple(shape.columns[i] for i in indexes),
        primary_key=tuple(places[i] for i in shape.primary_key),
        row_end=None if shape.row_end is None else places.get(shape.row_end),
    )


def _cut(row: Row | None, names: frozenset[str] | None) -> Row | None:
    if row is None or names is None:
        return row
    return {name: value for name, value in row.items() if name in names}


def _row_test(shape: TableShape, condition: Condition) -> _RowTest:
    by_id = _by_keyspace_id(condition)
    columns = shape.columns if by_id == condition else (*shape.columns, _KEYSPACE_ID)
    where = compile_where(by_id, [_source_column(column) for column in columns], None)
    return _RowTest(where.predicate, tuple(columns[i] for i in where.columns))


def _by_keyspace_id(condition: Condition) -> Condition:
    """Return the condition with `in_keyrange('-80')` as a test of the row's keyspace id."""
    match condition:
        case AllOf(terms):
            return AllOf(tuple(map(_by_keyspace_id, terms)))
        case AnyOf(terms):
            return AnyOf(tuple(map(_by_keyspace_id, terms)))
        case Not(term):
            return Not(_by_keyspace_id(term))
        case InKeyRange(key_range, None):
            return InKeyRange(key_range, ColumnRef(_KEYSPACE_ID.name), "binary")
        case _:
            return condition


def _source_column(column: Column) -> SourceColumn:
    declared = column.sql_type.partition("(")[0].lower()
    collation = ""
    if column.kind in (ValueKind.STRING, ValueKind.ENUM):
        collation = _UNKNOWN_COLLATION
    elif column.kind is ValueKind.BYTES and declared in _BINARY_TYPES:
        collation = BINARY
    return SourceColumn(
        column, collation, hidden_type=declared if declared in _HIDDEN_TYPES else ""
    )


def _raw(event: VEvent, row: Row, keyspace_id: bytes | None, column: Column) -> Any:
    """Return a value as the conditions of filter rules take it (see producers.filters.where)."""
    if column is _KEYSPACE_ID:
        if keyspace_id is None:
            raise RowImageMissing(
                f"{_place(event)} has no keyspace id: the table had no vindex when it was logged, "
                "so in_keyrange cannot be applied. Give the table a vindex in the settings of the "
                "keyspace and start after this, or name a column and a vindex in in_keyrange"
            )
        return keyspace_id
    if column.name not in row:
        raise RowImageMissing(
            f"{_place(event)} lacks column {column.name} in one of its images, which the condition "
            "needs. Set binlog_row_image=FULL and start after this, or read without the condition"
        )
    value = row[column.name]
    if value is None:
        return None
    if isinstance(value, InvalidDate):
        return str(value)
    convert = _CONVERSIONS.get(column.kind)
    return value if convert is None else convert(value, column)


def _place(event: VEvent) -> str:
    return (
        f"shard {event.shard}, {event.gtid}, offset {event.offset}: a row of "
        f"{event.database}.{event.table}"
    )


# By the kind of a column, what makes its values raw; those of other kinds are.
_CONVERSIONS: Final[Mapping[ValueKind, Callable[[Any, Column], Any]]] = {
    ValueKind.DECIMAL: lambda value, column: int(_EXACT.scaleb(value, column.scale)),
    ValueKind.DATE: lambda value, _: (value - date(1970, 1, 1)).days,
    ValueKind.TIME: lambda value, _: value // _MICROSECOND,
    ValueKind.DATETIME: lambda value, _: (value.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    ValueKind.TIMESTAMP: lambda value, _: (value - _EPOCH) // _MICROSECOND,
}
