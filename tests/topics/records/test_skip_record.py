"""SKIP records have an envelope version of their own."""

import pytest

from event_token.errors import Halt
from tests.topics.records.events import SHARD, UUID, ddl_event
from tests.topics.records.record_encoder import RecordCodec
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records import record_decoder
from topics.records.envelope import read_envelope
from topics.records.record_decoder import RecordDecoder
from topics.records.skip_record import SKIP_SCHEMA_TEXT, Skip, SkipKind, encode_skip
from topics.records.table_shape import (
    ENVELOPE_VERSION,
    EVENT_TYPES,
    ddl_schema,
    fingerprint,
    schema_text,
)
from topics.records.vevent import EventType, Op, TokenText
from topics.records.wire import wire_header

SKIP = Skip(SkipKind.TRANSACTION, f"{UUID}:7", "ticket 17")
TOKEN = TokenText(1_767_225_600_000_000, SHARD, f"{UUID}:1-7")


def encoded(ids: MemorySchemaIds) -> bytes:
    """Return a SKIP record."""
    return encode_skip(SKIP, seq=9, token=TOKEN, gtid=SKIP.gtids, schema_ids=ids)


def test_a_skip_comes_back_as_it_was_written() -> None:
    """B3: readers get type, seq, token, GTID and the operator's reason."""
    ids = MemorySchemaIds()

    event = RecordDecoder(ids).decode(encoded(ids), SHARD, 41)

    assert (event.type, event.op, event.seq, event.last) == (EventType.SKIP, Op.NONE, 9, True)
    assert (event.token_text, event.gtid) == (TOKEN, SKIP.gtids)
    assert (event.database, event.table) == ("", "")
    assert Skip.of(event) == SKIP
    assert read_envelope(encoded(ids))[1:] == (9, TOKEN.timestamp_us, True)
    with pytest.raises(CorruptRecord, match="offset 41: a SKIP record is broken"):
        Skip.of(ddl_event())


def test_readers_of_an_earlier_release_refuse_a_skip_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B3: a reader that does not know the type must not pass the record."""
    ids = MemorySchemaIds()
    known = {ENVELOPE_VERSION: EVENT_TYPES}
    monkeypatch.setattr(record_decoder, "TYPES_BY_ENVELOPE", known)

    with pytest.raises(UnknownEnvelope, match=r"offset 41: .* with the release that wrote it"):
        RecordDecoder(ids).decode(encoded(ids), SHARD, 41)


def test_a_type_of_a_later_release_is_refused_by_name() -> None:
    """B3: a record type that this release does not know stops it, before and after decoding."""
    ids = MemorySchemaIds()
    later = ids.register(SKIP_SCHEMA_TEXT.replace('"SKIP"', '"SKIP","LATER"'))

    with pytest.raises(UnknownEnvelope, match="offset 3"):
        RecordDecoder(ids).decode(wire_header(later) + b"\x0c", SHARD, 3)
    with pytest.raises(UnknownEnvelope, match="offset 3: a record of type 6"):
        read_envelope(wire_header(later) + b"\x0c\x02", "log", 3)


def test_the_schemas_of_other_records_have_not_changed() -> None:
    """B3: logs of earlier releases are read, and their readers read everything but skips."""
    codec = RecordCodec(MemorySchemaIds())
    event = ddl_event()

    assert codec.decode(codec.encode(event), SHARD, 41) == event
    assert fingerprint(schema_text(ddl_schema())).startswith("72e2a894b5c281ae")
    assert issubclass(UnknownEnvelope, Halt)
