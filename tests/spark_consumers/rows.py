"""Random table versions and rows of them, as hypothesis strategies."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, OffCalendar, Op, Row, TokenText, Value, VEvent

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
LABELS = ("small", "größer", 'with "quotes"')
KEY_KINDS = (ValueKind.INT, ValueKind.LONG, ValueKind.STRING, ValueKind.UNSIGNED_LONG)
CALENDAR_KINDS = (ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP)
POSITION = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{}"


@st.composite
def columns(draw: st.DrawFn, name: str, kind: ValueKind) -> Column:
    if kind is ValueKind.DECIMAL:
        precision = draw(st.integers(1, 65))
        scale = draw(st.integers(0, min(precision, 30)))
        return Column(name, kind, f"decimal({precision},{scale})", precision, scale)
    if kind in {ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP}:
        decimals = draw(st.integers(0, 6))
        return Column(name, kind, f"{kind.value}({decimals})" if decimals else kind.value)
    labels = LABELS if kind in {ValueKind.ENUM, ValueKind.SET} else ()
    return Column(name, kind, kind.value, labels=labels)


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    names = draw(st.lists(NAMES, min_size=1, max_size=8, unique=True))
    kinds = [draw(st.sampled_from(ValueKind)) for _ in names]
    found = tuple(draw(columns(name, kind)) for name, kind in zip(names, kinds, strict=True))
    candidates = [i for i, kind in enumerate(kinds) if kind in KEY_KINDS]
    key = tuple(draw(st.permutations(candidates)))[: draw(st.integers(0, 2))]
    return TableShape("shop", "orders", found, key)


def values(column: Column) -> st.SearchStrategy[Value]:
    match column.kind:
        case ValueKind.INT:
            return st.integers(-(2**31), 2**31 - 1)
        case ValueKind.YEAR:
            return st.integers(1901, 2155) | st.just(0)
        case ValueKind.LONG:
            return st.integers(-(2**63), 2**63 - 1)
        case ValueKind.BIT:
            return st.integers(0, 2**63 - 1)
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return st.integers(0, 2**64 - 1)
        case ValueKind.FLOAT:
            return st.floats(width=32, allow_nan=False, allow_infinity=False)
        case ValueKind.DOUBLE:
            return st.floats(allow_nan=False, allow_infinity=False)
        case ValueKind.DECIMAL:
            bound = 10**column.precision - 1
            scale = column.scale
            return st.integers(-bound, bound).map(lambda n: exact(n, scale))
        case ValueKind.STRING:
            return TEXT
        case ValueKind.ENUM:
            return st.sampled_from(LABELS)
        case ValueKind.SET:
            return st.lists(st.sampled_from(LABELS), unique=True)
        case ValueKind.JSON:
            return st.dictionaries(TEXT, st.none() | st.integers() | TEXT, max_size=3).map(
                lambda v: json.dumps(v, ensure_ascii=False)
            )
        case ValueKind.BYTES:
            return st.binary(max_size=20)
        case ValueKind.DATE:
            return st.dates()
        case ValueKind.TIME:
            return st.timedeltas(timedelta(hours=-838), timedelta(hours=838))
        case ValueKind.DATETIME:
            return st.datetimes()
        case ValueKind.TIMESTAMP:
            return st.datetimes(datetime(1970, 1, 2), datetime(2038, 1, 1)).map(  # noqa: DTZ001
                lambda v: v.replace(tzinfo=UTC)
            )


def exact(number: int, scale: int) -> Decimal:
    return Decimal((0 if number >= 0 else 1, tuple(map(int, str(abs(number)))), -scale))


@st.composite
def rows(draw: st.DrawFn, shape: TableShape, *, whole: bool) -> Row:
    row: Row = {}
    for i, column in enumerate(shape.columns):
        if i in shape.primary_key:
            row[column.name] = draw(values(column))
        elif whole or draw(st.booleans()):
            choices = st.none() | values(column)
            if column.kind in CALENDAR_KINDS:
                choices |= st.just(OffCalendar("0000-00-00"))
            row[column.name] = draw(choices)
    return row


@st.composite
def events(draw: st.DrawFn, shape: TableShape, seq: int) -> VEvent:
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ]))
    whole = draw(st.booleans())
    before = draw(rows(shape, whole=whole)) if op in {Op.UPDATE, Op.DELETE} else None
    after = draw(rows(shape, whole=whole)) if op is not Op.DELETE else None
    timestamp_us = draw(st.integers(0, 2**50))
    origin = TokenText(timestamp_us, "-40", "0-1-7") if draw(st.booleans()) else None
    return VEvent(
        type=EventType.ROW,
        seq=seq,
        token_text=TokenText(timestamp_us, "-80", POSITION.format(2 + seq), origin),
        commit_us=draw(st.integers(0, 2**50)),
        gtid=f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{seq}",
        row_index=draw(st.integers(0, 2**40)),
        last=draw(st.booleans()),
        database=shape.database,
        table=shape.table,
        op=op,
        keyspace_id_before=draw(st.none() | st.binary(max_size=8)),
        keyspace_id_after=None,
        before=before,
        after=after,
        statement=None,
        shape=shape,
        shard="-80",
        offset=seq * 3,
    )


def statement_event(seq: int, text: str) -> VEvent:
    return VEvent(
        type=EventType.DDL,
        seq=seq,
        token_text=TokenText(1_000_000, "-80", POSITION.format(2 + seq)),
        commit_us=1_000_000,
        gtid=f"3e11fa47-71ca-11e1-9e33-c80aa9429562:{seq}",
        row_index=0,
        last=True,
        database="shop",
        table="",
        op=Op.NONE,
        keyspace_id_before=None,
        keyspace_id_after=None,
        before=None,
        after=None,
        statement=text,
        shape=None,
        shard="-80",
        offset=seq * 3,
    )


def typed_value(column: Column, value: Value) -> object:
    """What the typed column holds for a value of the codec."""
    match column.kind:
        case _ if value is None or isinstance(value, OffCalendar):
            return None
        case ValueKind.TIME:
            assert isinstance(value, timedelta)
            return value // timedelta(microseconds=1)
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return Decimal(str(value))
        case ValueKind.DECIMAL if column.precision > 38:
            return f"{value:f}"
        case _:
            return value


class SchemaIdsInMemory:
    """Schema ids for tests that need no broker."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def register(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)

    def text_of(self, schema_id: int) -> str:
        return self.texts[schema_id]
