"""Hypothesis strategies: table versions, rows of them and events."""

from datetime import UTC, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from topics.records.envelope_table import added_fields
from topics.records.table_shape import DECIMAL_SCALE_MAX, Column, TableShape, ValueKind
from topics.records.vevent import EventType, InvalidDate, Op, Row, TokenText, Value, VEvent

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
SHARD = "-80"

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.integers(0, 2**62)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
LABELS = ("small", "x-large", "größer", "")

_TIME_MAX = timedelta(hours=838, minutes=59, seconds=59, microseconds=999_999)
_FLOATS: dict[str, Any] = {"allow_nan": False, "allow_infinity": False}
_INVALID_DATES = st.sampled_from(["0000-00-00", "2024-02-00", "0000-00-00 00:00:00.000"])

VALUES: dict[ValueKind, st.SearchStrategy[Value]] = {
    ValueKind.INT: st.integers(-(2**31), 2**31 - 1),
    ValueKind.LONG: INT64,
    ValueKind.UNSIGNED_LONG: st.integers(0, 2**64 - 1),
    ValueKind.FLOAT: st.floats(width=32, **_FLOATS),
    ValueKind.DOUBLE: st.floats(**_FLOATS),
    ValueKind.STRING: TEXTS,
    ValueKind.BYTES: st.binary(max_size=20),
    ValueKind.DATE: st.dates() | _INVALID_DATES.map(InvalidDate),
    ValueKind.TIME: st.timedeltas(-_TIME_MAX, _TIME_MAX),
    ValueKind.DATETIME: st.datetimes() | _INVALID_DATES.map(InvalidDate),
    ValueKind.TIMESTAMP: st.datetimes(timezones=st.just(UTC)) | _INVALID_DATES.map(InvalidDate),
    ValueKind.YEAR: st.integers(1901, 2155) | st.just(0),
    ValueKind.ENUM: st.sampled_from(LABELS),
    ValueKind.SET: st.lists(st.sampled_from(LABELS[:3]), unique=True),
    ValueKind.BIT: st.integers(0, 2**63 - 1),
    ValueKind.BIT64: st.integers(0, 2**64 - 1),
    ValueKind.JSON: st.sampled_from(['{"a": [1, null]}', "null", '"x"', "12.50"]),
}


@st.composite
def columns(draw: st.DrawFn, name: str) -> Column:
    """Any column of the name."""
    kind = draw(st.sampled_from(ValueKind))
    if kind is ValueKind.DECIMAL:
        precision = draw(st.integers(1, 65))
        scale = draw(st.integers(0, min(precision, DECIMAL_SCALE_MAX)))
        return Column(name, kind, f"decimal({precision},{scale})", precision, scale)
    if kind in {ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP}:
        digits = draw(st.integers(0, 6))
        return Column(name, kind, f"{kind.value}({digits})" if digits else kind.value)
    labels = LABELS if kind in {ValueKind.ENUM, ValueKind.SET} else ()
    return Column(name, kind, kind.value, labels=labels)


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    """Any table version of up to ten columns."""
    names = draw(st.lists(NAMES, min_size=1, max_size=10, unique=True))
    cols = tuple(draw(columns(name)) for name in names)
    key = draw(st.lists(st.sampled_from(range(len(cols))), unique=True, max_size=2))
    return TableShape(draw(NAMES), draw(NAMES), cols, tuple(key))


def decimals(column: Column) -> st.SearchStrategy[Value]:
    """All decimals that fit the column."""
    most = 10**column.precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(f"{n}E-{column.scale}"))


def values(column: Column) -> st.SearchStrategy[Value]:
    """Any value of the column, NULL among them."""
    known = decimals(column) if column.kind is ValueKind.DECIMAL else VALUES[column.kind]
    return st.none() | known


@st.composite
def rows(draw: st.DrawFn, shape: TableShape, *, full: bool) -> Row:
    """A row image; without `full`, any of the columns may be absent."""
    return {
        column.name: draw(values(column)) for column in shape.columns if full or draw(st.booleans())
    }


def added() -> dict[str, object]:
    """The fields of later versions of the envelope, as a record that sets none has them."""
    return {field.name: field.default for field in added_fields()}


def tokens() -> st.SearchStrategy[TokenText]:
    """Tokens of the shard, native or with an origin."""
    position = st.sampled_from([f"{UUID}:1-5", f"{UUID}:1-5:7,{UUID[:-1]}3:tag:1", "0-1-5,1-1-9"])
    origin = st.builds(TokenText, TIMES, st.just("40-80"), position)
    return st.builds(TokenText, TIMES, st.just(SHARD), position, st.none() | origin)


@st.composite
def row_events(draw: st.DrawFn) -> VEvent:
    """Any row change."""
    shape = draw(shapes())
    op = draw(st.sampled_from([op for op in Op if op is not Op.NONE]))
    images = rows(shape, full=draw(st.booleans()))
    return VEvent(
        type=EventType.ROW,
        seq=draw(st.integers(1, 2**62)),
        token_text=draw(tokens()),
        commit_us=draw(TIMES),
        gtid=draw(st.sampled_from([f"{UUID}:5", f"{UUID}:tag:5", "0-1-5"])),
        row_index=draw(st.integers(0, 2**40)),
        last=draw(st.booleans()),
        database=shape.database,
        table=shape.table,
        op=op,
        keyspace_id_before=draw(st.none() | st.binary(max_size=8)),
        keyspace_id_after=draw(st.none() | st.binary(max_size=8)),
        before=draw(images) if op in {Op.UPDATE, Op.DELETE} else None,
        after=draw(images) if op is not Op.DELETE else None,
        statement=None,
        shape=shape,
        shard=SHARD,
        offset=draw(st.integers(0, 2**62)),
        added=added(),
    )


def ddl_event(statement: str = "ALTER TABLE t ADD x INT") -> VEvent:
    """A DDL event."""
    return VEvent(
        type=EventType.DDL,
        seq=9,
        token_text=TokenText(1_767_225_600_000_000, SHARD, f"{UUID}:1-9"),
        commit_us=1_767_225_600_000_000,
        gtid=f"{UUID}:9",
        row_index=0,
        last=True,
        database="shop",
        table="",
        op=Op.NONE,
        keyspace_id_before=None,
        keyspace_id_after=None,
        before=None,
        after=None,
        statement=statement,
        shape=None,
        shard=SHARD,
        offset=41,
        added=added(),
    )


def insert(shape: TableShape, row: Row) -> VEvent:
    """An INSERT of one row."""
    return VEvent(
        type=EventType.ROW,
        seq=10,
        token_text=TokenText(1_767_225_600_123_456, SHARD, f"{UUID}:1-10"),
        commit_us=1_767_225_600_123_456,
        gtid=f"{UUID}:10",
        row_index=0,
        last=True,
        database=shape.database,
        table=shape.table,
        op=Op.INSERT,
        keyspace_id_before=None,
        keyspace_id_after=b"\x12",
        before=None,
        after=row,
        statement=None,
        shape=shape,
        shard=SHARD,
        offset=42,
        added=added(),
    )
