"""Readers of a release that has added fields to the envelope, on logs of before and after."""

from dataclasses import replace

import pyarrow as pa
import pytest

from tests.recorded.stored import RECORDED, schemas
from tests.recorded.written import EVENTS, JOURNAL, SKIPPED
from tests.topics.records.events import SHARD, added
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.arrow import output_columns
from topics.arrow.decoders import ArrowDecoder
from topics.arrow.output_columns import ENVELOPE_TYPES, choose_columns
from topics.errors import UnknownEnvelope
from topics.records import envelope_table
from topics.records.envelope import read_envelope
from topics.records.envelope_table import ENVELOPE, EnvelopeField, newest_version
from topics.records.event_decoder import EventDecoder
from topics.records.event_json import event_to_json_dict
from topics.records.table_shape import known_schema
from topics.records.vevent import VEvent

NOW = newest_version()
ADDED = (
    EnvelopeField("region", "string", "unknown", "string", since=NOW + 1),
    EnvelopeField("cost", ["null", "long"], None, "long", since=NOW + 1),
    EnvelopeField("is_batch", "boolean", False, "boolean", since=NOW + 2),
    EnvelopeField("trace", "bytes", b"", "bytes", since=NOW + 2),
)
DEFAULTS = added() | {field.name: field.default for field in ADDED}
VALUES = DEFAULTS | {"region": "größer", "cost": -7, "is_batch": True, "trace": b"\x00\xff"}
LOG = (*EVENTS, JOURNAL, SKIPPED)
RECORDS = [bytes.fromhex(record) for record in RECORDED["records"]]
COLUMNS = ",".join((*ENVELOPE_TYPES, *VALUES))


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this release one that has added four fields, in the next two versions."""
    monkeypatch.setattr(envelope_table, "ENVELOPE", (*ENVELOPE, *ADDED))
    types = [output_columns.COLUMN_TYPES[field.column] for field in ADDED]
    of_added = dict(zip((field.name for field in ADDED), types, strict=True))
    monkeypatch.setattr(output_columns, "ALL_TYPES", output_columns.ALL_TYPES | of_added)


def decoded(records: list[bytes], ids: MemorySchemaIds) -> tuple[VEvent, ...]:
    decoder = EventDecoder(ids)
    return tuple(
        decoder.decode(record, SHARD, event.offset)
        for record, event in zip(records, LOG, strict=True)
    )


def columns(records: list[bytes], ids: MemorySchemaIds, asked: str) -> pa.Table:
    decoder = ArrowDecoder(choose_columns(asked), ids.text_of, shard=SHARD)
    decoder.begin(1, 0)
    return pa.table(decoder.decode(records, [event.offset for event in LOG]))


def written(values: dict[str, object]) -> tuple[list[bytes], MemorySchemaIds]:
    """The log as the newer release writes it."""
    ids = MemorySchemaIds()
    encoder = RecordEncoder(ids)
    return [encoder.encode(replace(event, added=values)) for event in LOG], ids


def test_a_newer_release_reads_a_log_of_version_1(newer: None) -> None:
    """Added fields have their defaults in events, JSON and columns; all else is as it was."""
    found = decoded(RECORDS, schemas())
    rows = columns(RECORDS, schemas(), COLUMNS)

    assert newest_version() == NOW + 2
    assert found == tuple(replace(event, added=DEFAULTS) for event in LOG)
    assert event_to_json_dict(found[0])["region"] == "unknown"
    assert rows.select(list(VALUES)).to_pylist() == [DEFAULTS] * len(LOG)


def test_a_newer_release_reads_its_own_log(newer: None) -> None:
    """Added fields have their values, and readers that need no schema find the rest."""
    records, ids = written(VALUES)
    rows = columns(records, ids, COLUMNS)

    assert decoded(records, ids) == tuple(replace(event, added=VALUES) for event in LOG)
    assert rows.select(list(VALUES)).to_pylist() == [VALUES] * len(LOG)
    before = columns(RECORDS, schemas(), ",".join(ENVELOPE_TYPES)).drop_columns(["schema_id"])
    assert rows.select(before.column_names).equals(before)
    assert [read_envelope(r)[1:] for r in records] == [read_envelope(r)[1:] for r in RECORDS]


def test_version_1_stays_as_it_was(newer: None) -> None:
    """A schema without a version has version 1, whatever fields were added since."""
    text = RECORDED["schemas"][0].replace('"envelope":1,', "")

    assert known_schema(text, 0, "a log").envelope_version == 1
    assert '"region"' not in str(envelope_table.envelope_fields(1))


def test_this_release_refuses_the_newer_log_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both readers stop with the same message, which says what to do."""
    with monkeypatch.context() as patch:
        patch.setattr(envelope_table, "ENVELOPE", (*ENVELOPE, *ADDED))
        records, ids = written(VALUES)

    message = f"envelope version {NOW + 2}, and this release reads versions? (1 to )?{NOW}: upgrade"
    with pytest.raises(UnknownEnvelope, match=message):
        decoded(records, ids)
    with pytest.raises(UnknownEnvelope, match=message):
        columns(records, ids, "op")
