"""SKIP records."""

import pytest

from tests.topics.records.events import SHARD, UUID, ddl_event
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records.envelope import read_envelope
from topics.records.event_decoder import EventDecoder
from topics.records.skip_record import Skip, SkipKind, encode_skip
from topics.records.statement_record import STATEMENT_SCHEMA_TEXT
from topics.records.table_shape import wire_header
from topics.records.vevent import EventType, Op, TokenText

SKIP = Skip(SkipKind.TRANSACTION, f"{UUID}:7", "ticket 17", "ann@db-a")
TOKEN = TokenText(1_767_225_600_000_000, SHARD, f"{UUID}:1-7")


def encoded(ids: MemorySchemaIds) -> bytes:
    """Return a SKIP record."""
    return encode_skip(SKIP, seq=9, token=TOKEN, gtid=SKIP.gtids, schema_ids=ids)


def test_a_skip_comes_back_as_it_was_written() -> None:
    """B3: readers get type, seq, token, GTID, the reason, and who skipped it."""
    ids = MemorySchemaIds()

    event = EventDecoder(ids).decode(encoded(ids), SHARD, 41)

    assert (event.type, event.op, event.seq, event.last) == (EventType.SKIP, Op.NONE, 9, True)
    assert (event.token_text, event.gtid) == (TOKEN, SKIP.gtids)
    assert (event.database, event.table) == ("", "")
    assert Skip.of(event) == SKIP
    assert read_envelope(encoded(ids))[1:] == (9, TOKEN.timestamp_us, True)
    with pytest.raises(CorruptRecord, match="offset 41: a SKIP record is broken"):
        Skip.of(ddl_event())


def test_a_type_of_a_later_release_is_refused_by_name() -> None:
    """B3: a record type that this release does not know stops it, before and after decoding."""
    ids = MemorySchemaIds()
    later = ids.register(STATEMENT_SCHEMA_TEXT.replace('"SKIP"', '"SKIP","LATER"'))

    with pytest.raises(UnknownEnvelope, match="offset 3"):
        EventDecoder(ids).decode(wire_header(later) + b"\x0c", SHARD, 3)
    with pytest.raises(UnknownEnvelope, match="offset 3: a record of type 6"):
        read_envelope(wire_header(later) + b"\x0c\x02", "log", 3)
