import struct
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sinks.errors import PartialRow, ValueDoesNotFit
from sinks.table_topics.envelope.connect_types import connect_type, keeps_values_apart
from sinks.table_topics.envelope.table_encoder import TableEncoder, VersionRecords
from sinks.table_topics.options import Decimals, EnvelopeOptions, Format, Times, Unsigned
from tests.generated import examples
from tests.sinks.rule.batches import change
from tests.sinks.table_topics.envelope.slow_messages import (
    KEY_ID,
    VALUE_ID,
    NoFormError,
    SlowEncoder,
    fraction_digits,
)
from tests.topics.records.events import UUID, columns, values
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.arrow.key_scope import KeyScope
from topics.arrow.scoped_rows import scoped_shape
from topics.errors import CannotApply, CorruptRecord
from topics.records.envelope_table import newest_version
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Op, Row, TokenText, Value, VEvent

NAMES = ("größe", "a b", 'q"uote', "x1", "2nd", "zeile\n")
# Those that may have another form for each option.
KEY_KINDS = (
    *(ValueKind.INT, ValueKind.LONG, ValueKind.UNSIGNED_LONG, ValueKind.STRING, ValueKind.BYTES),
    *(ValueKind.DECIMAL, ValueKind.DATE, ValueKind.TIME, ValueKind.DATETIME, ValueKind.ENUM),
)
SQL_TYPES = {
    ValueKind.INT: ("tinyint", "smallint", "int", "int unsigned"),
    ValueKind.BIT: ("bit(1)", "bit(9)", "bit(63)"),
    ValueKind.BIT64: ("bit(64)",),
    ValueKind.BYTES: ("varbinary(20)", "blob", "point", "polygon", "vector(3)"),
}
OPTIONS = st.builds(
    EnvelopeOptions,
    st.just("commerce"),
    st.just("p"),
    format=st.sampled_from(Format),
    decimal=st.sampled_from(Decimals),
    time=st.sampled_from(Times),
    unsigned=st.sampled_from(Unsigned),
    tombstones=st.booleans(),
)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SRIDS = st.integers(0, 5000) | st.integers(0, 0xFFFFFFFF)
POINTS = st.tuples(SRIDS, FLOATS, FLOATS)


@st.composite
def typed_columns(draw: st.DrawFn, name: str, kinds: tuple[ValueKind, ...] | None) -> Column:
    found = draw(columns(name).filter(lambda c: kinds is None or c.kind in kinds))
    sql_types = SQL_TYPES.get(found.kind)
    return found if sql_types is None else replace(found, sql_type=draw(st.sampled_from(sql_types)))


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    key = draw(typed_columns("id", KEY_KINDS))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
    others: list[Column] = [draw(typed_columns(name, None)) for name in names]
    at = draw(st.integers(0, len(others)))
    keys: tuple[int, ...] = (at,)
    if others and others[0].kind in KEY_KINDS and draw(st.booleans()):
        keys = (at, 0 if at else 1)
    return TableShape("shop", "orders", (*others[:at], key, *others[at:]), keys)


@st.composite
def column_values(draw: st.DrawFn, column: Column) -> Value:
    """A value that a server with this column can have."""
    value: Value = draw(values(column))
    match column.sql_type.partition("(")[0], value:
        case _, None | InvalidDate():
            return value
        case "bit", int(number):
            return number & ((1 << int(column.sql_type[4:-1])) - 1)
        case "point", _:
            srid, x, y = draw(POINTS)
            return struct.pack("<IBI2d", srid, 1, 1, x, y)
        case "polygon", _:
            return struct.pack("<I", draw(SRIDS)) + draw(st.binary(max_size=9))
        case "vector", _:
            return struct.pack("<3f", *draw(st.tuples(FLOATS, FLOATS, FLOATS)))
    match value:
        case timedelta():
            return value - value % timedelta(microseconds=10 ** (6 - fraction_digits(column)))
        case datetime():
            unit = 10 ** (6 - fraction_digits(column))
            return value.replace(microsecond=value.microsecond // unit * unit)
        case _:
            return value


@st.composite
def rows(draw: st.DrawFn, shape: TableShape) -> Row:
    def is_value(value: Value) -> bool:
        return value is not None and not isinstance(value, InvalidDate)

    return {
        column.name: draw(
            column_values(column).filter(is_value)
            if i in shape.primary_key
            else column_values(column)
        )
        for i, column in enumerate(shape.columns)
    }


TOKENS = st.sampled_from(
    [
        TokenText(1_700_000_000_123_456, "-80", f"{UUID}:1-5"),
        TokenText(1_700_000_000_123_456, "-80", f"{UUID}:1-5", TokenText(5, "-40", f"{UUID}:1-3")),
        TokenText(7, 'q"', "0-1-5,1-1-9"),
    ]
)


@st.composite
def changes(draw: st.DrawFn, shape: TableShape) -> VEvent:
    op = draw(st.sampled_from([Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ]))
    row = draw(rows(shape))
    after = draw(st.just(row) | rows(shape)) if op is not Op.DELETE else None
    if op is Op.UPDATE and after is not None and draw(st.booleans()):
        # Mostly the key stays.
        after = after | {
            shape.columns[i].name: row[shape.columns[i].name] for i in shape.primary_key
        }
    ids = st.sampled_from([b"\x12", b"\x80" * 8])
    token = draw(TOKENS)
    return replace(
        change("-80", draw(st.integers(1, 2**62)), 0, shape=shape),
        token_text=token,
        shard=token.shard,
        gtid=draw(st.sampled_from(["", f"{UUID}:5", "0-1-5"])),
        op=op,
        before=row if op in {Op.UPDATE, Op.DELETE} else None,
        after=after,
        keyspace_id_before=draw(ids),
        keyspace_id_after=draw(ids),
    )


@st.composite
def versions(draw: st.DrawFn) -> tuple[TableShape, list[VEvent]]:
    shape = draw(shapes())
    return shape, draw(st.lists(changes(shape), min_size=1, max_size=4))


def register(subject: str, text: str) -> int:
    return KEY_ID if subject.endswith("-key") else VALUE_ID


def encoder_of(shape: TableShape, options: EnvelopeOptions, scope: KeyScope) -> TableEncoder:
    of = scoped_shape(shape) if scope is KeyScope.SHARD else shape
    return TableEncoder(of, options, register, scope)


@settings(max_examples=examples(100))
@given(versions(), OPTIONS, st.sampled_from(KeyScope), st.booleans(), st.data())
def test_messages_have_the_bytes_of_a_slow_encoder(
    version: tuple[TableShape, list[VEvent]],
    options: EnvelopeOptions,
    scope: KeyScope,
    schemas: bool,
    data: st.DataObject,
) -> None:
    """Key, value, header and order; any op as a key range sees it, and any halves of the rows."""
    shape, events = version
    if schemas and not options.format.is_avro:
        options = replace(options, schemas=True)
    keys = [shape.columns[i] for i in shape.primary_key]
    assume(all(keeps_values_apart(column, connect_type(column, options)) for column in keys))
    encoder = encoder_of(shape, options, scope)
    has_home = scope is KeyScope.SHARD
    slow = SlowEncoder(scoped_shape(shape) if has_home else shape, options, has_home=has_home)
    to_record = RecordEncoder(MemorySchemaIds()).encode
    records = [to_record(event) for event in events]
    seen = st.sampled_from([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
    ops = [data.draw(seen) if event.op is Op.UPDATE else event.op for event in events]
    halves = [data.draw(st.binary(min_size=len(events), max_size=len(events))) for _ in "on"]
    # As two batches of one query.
    for begin, end in ((0, 2), (2, len(events))):
        processed_us = 1_800_000_000_123_456 + begin
        of_batch = range(begin, min(end, len(events)))
        try:
            expected = [
                (i - begin, message)
                for i in of_batch
                for message in slow.messages(
                    *(events[i], ops[i], processed_us),
                    old_half=halves[0][i] != 0,
                    new_half=halves[1][i] != 0,
                )
            ]
        except NoFormError:
            expected = None
        of = VersionRecords(
            [records[i] for i in of_batch],
            newest_version(),
            [ops[i].value for i in of_batch],
            *(half[begin:end] for half in halves),
        )
        if expected is None:
            with pytest.raises(ValueDoesNotFit):
                encoder.encode(of, processed_us)
            continue
        found = encoder.encode(of, processed_us)
        assert found.rows == [row for row, _ in expected]
        assert found.keys == [message.key for _, message in expected]
        assert found.values == [message.value for _, message in expected]
        headers = {i: m.header for i, (_, m) in enumerate(expected) if m.header is not None}
        assert found.headers == headers


SHAPE = TableShape(
    "shop",
    "orders",
    (Column("id", ValueKind.INT, "int"), Column("note", ValueKind.STRING, "text")),
    (0,),
)


def records_of(*events: VEvent) -> VersionRecords:
    encode = RecordEncoder(MemorySchemaIds()).encode
    return VersionRecords([encode(event) for event in events], newest_version())


def insert(seq: int, **row: Any) -> VEvent:
    return change("-80", seq, 100, None, row, shape=SHAPE)


def test_a_row_that_lacks_columns_stops_by_place_and_columns() -> None:
    """The error names shard, seq, table, columns and what to set; no message is made."""
    encoder = encoder_of(SHAPE, EnvelopeOptions("shop", "p"), KeyScope.KEYSPACE)

    why = r'shard -80, seq 2 .*row of shop\.orders.*"after":\["note"\].*FULL.*another --prefix'
    with pytest.raises(PartialRow, match=why):
        encoder.encode(records_of(insert(1, id=1, note="a"), insert(2, id=2)), 1)
    assert len(encoder.encode(records_of(insert(1, id=1, note="a")), 1).keys) == 1


def test_a_row_without_its_keyspace_id_stops_where_that_is_a_part_of_the_key() -> None:
    """With --key-scope shard the error names table, shard and seq."""
    encoder = encoder_of(SHAPE, EnvelopeOptions("shop", "p"), KeyScope.SHARD)

    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 3: .* no keyspace id"):
        encoder.encode(records_of(insert(3, id=1, note="a")), 1)


@settings(max_examples=examples(20))
@given(versions(), st.sampled_from(Format), st.data())
def test_a_truncated_record_is_an_error_that_names_its_table(
    version: tuple[TableShape, list[VEvent]], style: Format, data: st.DataObject
) -> None:
    """Never a message of half a row; the encoder reads the next records."""
    shape, events = version
    options = EnvelopeOptions("shop", "p", format=style, unsigned=Unsigned.PRECISE)
    encoder = encoder_of(shape, options, KeyScope.KEYSPACE)
    whole = records_of(events[0])
    [record] = whole.records
    cut = record[: data.draw(st.integers(0, len(record) - 1))]

    with pytest.raises(CorruptRecord, match=r"shop\.orders, near shard .*the record cannot be"):
        encoder.encode(replace(whole, records=[record, cut]), 1)
    assert encoder.encode(whole, 1).keys


def test_no_json_number_stands_for_infinity() -> None:
    """A float that JSON cannot represent is an error, not text that no parser reads."""
    shape = replace(SHAPE, columns=(SHAPE.columns[0], Column("f", ValueKind.DOUBLE, "double")))
    event = change("-80", 1, 100, None, {"id": 1, "f": float("inf")}, shape=shape)

    with pytest.raises(CorruptRecord, match="not finite"):
        encoder_of(shape, EnvelopeOptions("s", "p"), KeyScope.KEYSPACE).encode(records_of(event), 1)
