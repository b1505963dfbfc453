from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import parse_gtid_set
from event_token.errors import Halt, ShardstreamError
from event_token.gtid_set import Flavor
from tests.generated import examples
from tests.topics.records.events import SHARD, UUID, ddl_event, insert, row_events
from tests.topics.records.record_encoder import RecordCodec, record_key
from tests.topics.records.row_encoding import ValueMisfitError
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records.envelope import read_envelope, read_seq
from topics.records.envelope_table import EVENT_TYPES, newest_version
from topics.records.event_decoder import EventDecoder
from topics.records.table_shape import (
    Column,
    TableShape,
    ValueKind,
    row_schema,
    schema_text,
    statement_schema,
    wire_header,
)
from topics.records.vevent import EventType, InvalidDate, Op, Row, TokenText, VEvent

ORDERS = TableShape(
    "shop",
    "orders",
    (
        Column("id", ValueKind.LONG, "bigint"),
        Column("price €", ValueKind.DECIMAL, "decimal(65,30)", 65, 30),
        Column("placed", ValueKind.DATETIME, "datetime(6)"),
        Column("units", ValueKind.UNSIGNED_LONG, "bigint unsigned"),
    ),
    (0,),
)
ROW: Row = {
    "id": -7,
    "price €": Decimal("-12345678901234567890123456789012345.123456789012345678901234567890"),
    "placed": datetime(9999, 12, 31, 23, 59, 59, 999_999),  # noqa: DTZ001
    "units": 2**64 - 1,
}


def codec() -> RecordCodec:
    """A codec that knows no schema yet."""
    return RecordCodec(MemorySchemaIds())


@given(row_events())
@settings(max_examples=examples(150))
def test_decode_gives_back_what_encode_got(event: VEvent) -> None:
    """Any row of any table comes back with equal values of equal types, absent ones absent."""
    both = codec()

    decoded = both.decode(both.encode(event), event.shard, event.offset)

    assert decoded == event
    for image, meant in ((decoded.before, event.before), (decoded.after, event.after)):
        assert (image is None) == (meant is None)
        for name, value in (image or {}).items():
            assert type(value) is type((meant or {})[name])


@given(row_events())
@settings(max_examples=examples(50))
def test_the_envelope_is_read_without_a_schema(event: VEvent) -> None:
    """The fast path agrees with the whole decoding."""
    value = codec().encode(event)

    expected = (EVENT_TYPES.index("ROW"), event.seq, event.timestamp_us, event.last)

    assert read_envelope(value) == expected
    assert read_seq(value) == event.seq


@given(row_events(), st.data())
@settings(max_examples=examples(80))
def test_truncated_bytes_are_corrupt(event: VEvent, data: st.DataObject) -> None:
    """A record cut short anywhere is refused, never decoded to something else."""
    both = codec()
    value = both.encode(event)
    cut = data.draw(st.integers(0, len(value) - 1))

    with pytest.raises(CorruptRecord):
        both.decode(value[:cut], event.shard, event.offset)


@given(row_events(), st.binary(min_size=1, max_size=4))
@settings(max_examples=examples(50))
def test_bytes_after_the_record_are_corrupt(event: VEvent, more: bytes) -> None:
    """A record followed by more bytes is refused."""
    both = codec()

    with pytest.raises(CorruptRecord, match="bytes are left"):
        both.decode(both.encode(event) + more, event.shard, event.offset)


@given(row_events(), st.data())
@settings(max_examples=examples(150))
def test_damaged_bytes_raise_nothing_else(event: VEvent, data: st.DataObject) -> None:
    """Changed bytes decode or raise an error of the project, in both readers."""
    both = codec()
    value = bytearray(both.encode(event))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(5, len(value) - 1))] = data.draw(st.integers(0, 255))

    with suppress(CorruptRecord):
        both.decode(bytes(value), event.shard, event.offset)
    with suppress(CorruptRecord, UnknownEnvelope):
        read_envelope(bytes(value))


def test_envelope_cut_short_is_corrupt() -> None:
    """The fast path refuses every length that ends before the flag it returns."""
    value = codec().encode(insert(ORDERS, dict(ROW)))
    whole = read_envelope(value)

    lengths = [n for n in range(len(value)) if _envelope_or_none(value[:n]) not in {None, whole}]

    assert lengths == []
    assert _envelope_or_none(value[:40]) is None


def _envelope_or_none(value: bytes) -> object:
    try:
        return read_envelope(value)
    except CorruptRecord:
        return None


def test_ddl_round_trip() -> None:
    """A DDL statement comes back, without images and shape."""
    both = codec()
    event = ddl_event("ALTER TABLE größe ADD x INT")

    assert both.decode(both.encode(event), SHARD, event.offset) == event


def test_values_at_the_edges_keep_all_digits() -> None:
    """65 digits, the last microsecond of the calendar and the largest unsigned number survive."""
    both = codec()
    event = insert(ORDERS, dict(ROW))

    assert both.decode(both.encode(event), SHARD, event.offset).after == ROW


def test_bytes_follow_the_registered_schema() -> None:
    """A plain Avro reader with the registered schema sees the same values."""
    schema = row_schema(ORDERS, "commerce")
    value = codec().encode(insert(ORDERS, dict(ROW, placed=None)))

    fields = fastavro.schemaless_reader(BytesIO(value[5:]), fastavro.parse_schema(schema), None)

    assert isinstance(fields, dict)
    assert fields["after"]["price_x20__x20ac_"] == ROW["price €"]
    assert fields["columns_after"] == b"\x0f"


def test_a_date_that_no_calendar_has_keeps_its_text() -> None:
    """A zero date is null on the wire and the server's text in the row."""
    both = codec()
    event = insert(ORDERS, dict(ROW, placed=InvalidDate("0000-00-00 00:00:00")))

    after = both.decode(both.encode(event), SHARD, event.offset).after

    assert after is not None
    assert after["placed"] == "0000-00-00 00:00:00"
    assert isinstance(after["placed"], InvalidDate)


def test_a_date_outside_the_calendar_is_corrupt() -> None:
    """A day number that Python has no date for is refused, not wrapped round."""
    shape = TableShape("d", "t", (Column("day", ValueKind.INT, "int"),))
    as_date = TableShape("d", "t", (Column("day", ValueKind.DATE, "date"),))
    ids = MemorySchemaIds()
    both = RecordCodec(ids)
    value = both.encode(insert(shape, {"day": 2**31 - 1}))
    ids.texts[0] = schema_text(row_schema(as_date, "commerce"))

    with pytest.raises(CorruptRecord, match="offset 42"):
        EventDecoder(ids).decode(value, SHARD, 42)


def test_event_of_another_shard_is_corrupt() -> None:
    """A record whose token names another shard than its log is refused."""
    both = codec()

    with pytest.raises(CorruptRecord, match="its token is of shard '-80'"):
        both.decode(both.encode(ddl_event()), "80-", 3)


@pytest.mark.parametrize("value", [None, b"", b"\1\0\0\0\1abc", b"\0\0\0"])
def test_other_bytes_than_the_wire_format_are_corrupt(value: bytes | None) -> None:
    """A tombstone or a foreign record is refused and its place named."""
    with pytest.raises(CorruptRecord, match="log of shard -80, offset 3"):
        codec().decode(value, SHARD, 3)


def test_unknown_schema_id_halts() -> None:
    """An id that the registry does not have stops the reader and is named."""
    with pytest.raises(Halt, match="schema 12"):
        codec().decode(wire_header(12) + b"abc", SHARD, 3)


@pytest.mark.parametrize(
    "text",
    [
        schema_text({**statement_schema(), "envelope": newest_version() + 1}),
        schema_text({**statement_schema(), "fields": statement_schema()["fields"][1:]}),
        schema_text(
            {
                **statement_schema(),
                "fields": [*statement_schema()["fields"], {"name": "n", "type": "int"}],
            }
        ),
        '"string"',
    ],
)
def test_schema_of_another_release_halts(text: str) -> None:
    """A schema whose envelope or body is not the known one is refused, not guessed at."""
    ids = MemorySchemaIds()
    ids.register(text)

    with pytest.raises(UnknownEnvelope, match="release that wrote it"):
        EventDecoder(ids).decode(wire_header(0) + b"abc", SHARD, 3)


def test_images_that_do_not_fit_the_op_are_refused() -> None:
    """An UPDATE without its before image cannot be written, and cannot be read."""
    both = codec()
    event = insert(ORDERS, dict(ROW))

    with pytest.raises(ValueMisfitError):
        both.encode(replace(event, op=Op.UPDATE))
    with pytest.raises(CorruptRecord):
        both.decode(both.encode(replace(event, type=EventType.DDL)), SHARD, 42)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 2**63),
        ("id", "7"),
        ("units", -1),
        ("units", 2**64),
        ("price €", Decimal("1E-31")),
        ("price €", Decimal("1E35")),
        ("placed", timedelta(1)),
        ("absent", 1),
    ],
)
def test_value_that_does_not_fit_is_refused(name: str, value: object) -> None:
    """Encoding never cuts a value to its column."""
    with pytest.raises(ValueMisfitError):
        codec().encode(insert(ORDERS, {**ROW, name: value}))  # type: ignore[dict-item]


def test_records_of_a_transaction_share_their_token() -> None:
    """The GTID set is parsed at most once for all rows of a transaction."""
    both = codec()
    value = both.encode(insert(ORDERS, dict(ROW)))

    first, second = both.decode(value, SHARD, 1), both.decode(value, SHARD, 2)

    assert first.token_text is second.token_text
    assert first.token is second.token
    assert first.token.position == parse_gtid_set(f"{UUID}:1-10", Flavor.MYSQL)


def test_tokens_of_both_families_are_parsed() -> None:
    """A MariaDB position makes a MariaDB set, with the origin's beside it."""
    origin = TokenText(3, "40-80", f"{UUID}:1-2")

    token = TokenText(5, SHARD, "0-1-5,1-1-7", origin).token

    assert str(token.position) == "0-1-5,1-1-7"
    assert TokenText.of(token) == TokenText(5, SHARD, "0-1-5,1-1-7", origin)


def test_broken_position_is_corrupt() -> None:
    """A position that is no GTID set is an error of the record, not of the user."""
    with pytest.raises(CorruptRecord, match="shard -80"):
        _ = TokenText(5, SHARD, "nonsense").token


def test_key_is_table_and_primary_key() -> None:
    """The key is the same for all versions of a row, and of the row that is left."""
    event = insert(ORDERS, dict(ROW))
    moved = replace(event, op=Op.UPDATE, before=dict(ROW), after=dict(ROW, id=8))
    deleted = replace(event, op=Op.DELETE, before=dict(ROW), after=None)

    table = b"\x08shop\x0corders"

    assert record_key(event) == table + b"\x0d"
    assert record_key(deleted) == table + b"\x0d"
    assert record_key(moved) == table + b"\x10"
    assert record_key(ddl_event()) == b"\x08shop\x00"


def test_key_of_every_kind_is_the_wire_form_of_its_value() -> None:
    """Key columns are written like the row's, without the null branch."""
    shape = TableShape(
        "d",
        "t",
        (
            Column("day", ValueKind.DATE, "date"),
            Column("at", ValueKind.TIMESTAMP, "timestamp"),
            Column("n", ValueKind.DECIMAL, "decimal(5,2)", 5, 2),
        ),
        (2, 0, 1),
    )
    row: Row = {
        "day": date(1970, 1, 2),
        "at": datetime(1970, 1, 1, 0, 0, 0, 3, tzinfo=UTC),
        "n": Decimal("-0.01"),
    }

    key = record_key(insert(shape, row))

    assert key == b"\x02d\x02t" + b"\x10" + b"\xff" * 8 + b"\x02" + b"\x06"


def test_errors_are_of_the_project() -> None:
    """A corrupt record halts: an operator must look."""
    assert issubclass(CorruptRecord, Halt)
    assert issubclass(UnknownEnvelope, ShardstreamError)
