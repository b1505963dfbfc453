from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from event_token import KeyRange
from event_token.errors import UsageError
from tests.generated import examples
from tests.spark_consumers.rows import events, shapes, statement_event, typed_value
from tests.topics.records.record_encoder import RecordEncoder
from tests.topics.schemas.memory_schema_ids import MemorySchemaIds
from topics.arrow.decoders import PLACES, ArrowDecoder, TableDecoder
from topics.arrow.output_columns import (
    ENVELOPE_TYPES,
    ON_REQUEST_TYPES,
    choose_columns,
)
from topics.errors import CorruptRecord
from topics.records.table_shape import schema_id_of as header_id
from topics.records.vevent import VEvent

SHARDS = ("-80", "80-", "c0-")
# Of each example: to draw them is nearly all of the time.
EVENTS = 4
ASKED = "op,key,old_key,record,schema_id,key_hash,old_key_hash"


@st.composite
def mixed(draw: st.DrawFn) -> list[VEvent]:
    """Changes of several table versions and shards, in no order."""
    versions = draw(st.lists(shapes(), min_size=1, max_size=3))
    found = [draw(events(draw(st.sampled_from(versions)), i + 1)) for i in range(EVENTS)]
    shards = st.sampled_from(SHARDS)
    return draw(st.permutations([_moved(event, draw(shards)) for event in found]))


def _moved(event: VEvent, shard: str) -> VEvent:
    return replace(event, shard=shard, token_text=replace(event.token_text, shard=shard))


def schema_id_of(record: bytes) -> int:
    return header_id(record, "a shard log")


def source_rows(found: list[VEvent], schema_ids: MemorySchemaIds) -> list[dict[str, object]]:
    """What a Spark query that asks for records has of each event."""
    encoder = RecordEncoder(schema_ids)
    rows: list[dict[str, object]] = []
    for event in found:
        decoder = ArrowDecoder(choose_columns(ASKED), schema_ids.text_of, shard=event.shard)
        decoder.begin(event.seq, 0)
        rows += decoder.decode([encoder.encode(event)], [0]).to_pylist()
    return rows


@settings(max_examples=examples(50))
@given(mixed())
def test_a_row_can_be_asked_for_its_record_and_hashes_of_its_keys(found: list[VEvent]) -> None:
    """`record` is the record as on Kafka; a key's hash is the signed xxh64 of its JSON text."""
    schema_ids = MemorySchemaIds()
    rows = source_rows(found, schema_ids)

    encoder = RecordEncoder(schema_ids)
    for event, row in zip(found, rows, strict=True):
        assert row["record"] == encoder.encode(event)
        for key, key_hash in (("key", "key_hash"), ("old_key", "old_key_hash")):
            text = row[key]
            number = None if text is None else xxh64_intdigest(str(text).encode())
            signed = number if number is None or number < 2**63 else number - 2**64
            assert row[key_hash] == signed


def test_statements_have_a_record_and_no_hashes() -> None:
    """A statement's record is there too; it has no key."""
    schema_ids = MemorySchemaIds()
    statement = statement_event(7, "DROP TABLE t")

    [row] = source_rows([statement], schema_ids)

    assert row["record"] == RecordEncoder(schema_ids).encode(statement)
    assert (row["key"], row["key_hash"], row["old_key_hash"]) == (None, None, None)


def test_only_a_list_of_columns_has_records() -> None:
    """A change log, which takes all columns, does not hold every row twice."""
    assert choose_columns(None).names == tuple(ENVELOPE_TYPES)
    assert not set(ENVELOPE_TYPES) & set(ON_REQUEST_TYPES)


@settings(max_examples=examples(50))
@given(mixed())
def test_records_of_any_shards_and_order_have_the_codecs_values(found: list[VEvent]) -> None:
    """A task decodes records by table version, and gets the rows in the order of the records."""
    schema_ids = MemorySchemaIds()
    encoder = RecordEncoder(schema_ids)
    by_version: dict[int, list[VEvent]] = {}
    for event in found:
        by_version.setdefault(schema_id_of(encoder.encode(event)), []).append(event)
    decoder = TableDecoder(schema_ids.text_of, more=PLACES)
    without_places = TableDecoder(schema_ids.text_of)

    for schema_id, same in by_version.items():
        records = [encoder.encode(event) for event in same]
        batch = decoder.decode(schema_id, records)

        batch.validate(full=True)
        few = without_places.decode(schema_id, records)
        assert few.equals(batch.select([n for n in batch.schema.names if n not in PLACES]))
        assert decoder.shape(schema_id) == same[0].shape
        for event, row in zip(same, batch.to_pylist(), strict=True):
            assert row == expected_row(event, schema_ids)


def expected_row(event: VEvent, schema_ids: MemorySchemaIds) -> dict[str, object]:
    assert event.shape is not None
    names = "op,shard,seq,timestamp_us,gtid,token,key,old_key,keyspace_id_before,keyspace_id_after"
    output = choose_columns(f"{names},absent,invalid_dates")
    decoder = ArrowDecoder(output, schema_ids.text_of, shard=event.shard)
    decoder.begin(event.seq, 0)
    [row] = decoder.decode([RecordEncoder(schema_ids).encode(event)], [0]).to_pylist()
    for name, image in (("before", event.before), ("after", event.after)):
        row[name] = (
            None
            if image is None
            else {c.name: typed_value(c, image.get(c.name)) for c in event.shape.columns}
        )
    return dict(row)


@settings(max_examples=examples(50))
@given(mixed(), st.data())
def test_a_key_range_hides_the_same_of_a_record_as_of_a_row(
    found: list[VEvent], data: st.DataObject
) -> None:
    """With the ops that a key range sees, a record has the images and keys that the row has."""
    schema_ids = MemorySchemaIds()
    encoder = RecordEncoder(schema_ids)
    ids = st.sampled_from([b"\x10", b"\xf0"])
    shape = found[0].shape
    assert shape is not None
    decoder = TableDecoder(schema_ids.text_of)
    columns = (
        "op,key,old_key,keyspace_id_before,keyspace_id_after,before,after,absent,invalid_dates"
    )
    for event in found:
        if event.shape != shape or any(
            row is not None and len(row) < len(shape.columns) for row in (event.before, event.after)
        ):
            continue
        placed = replace(
            event,
            keyspace_id_before=None if event.before is None else data.draw(ids),
            keyspace_id_after=None if event.after is None else data.draw(ids),
        )
        record = encoder.encode(placed)
        source = ArrowDecoder(
            choose_columns(columns, shape, 0),
            schema_ids.text_of,
            shard=event.shard,
            key_range=KeyRange.parse("-80"),
        )
        source.begin(event.seq, 0)
        for row in source.decode([record], [0]).to_pylist():
            [got] = decoder.decode(schema_id_of(record), [record], [row["op"]]).to_pylist()

            assert {name: got[name] for name in row if name not in {"absent", "invalid_dates"}} == {
                name: value
                for name, value in row.items()
                if name not in {"absent", "invalid_dates"}
            }


@settings(max_examples=examples(50))
@given(shapes().flatmap(lambda shape: events(shape, 1)), st.data())
def test_a_broken_record_is_named_and_leaves_no_half_row(
    event: VEvent, data: st.DataObject
) -> None:
    """F32: a truncated record is an error that names its table; the next records are decoded."""
    schema_ids = MemorySchemaIds()
    record = RecordEncoder(schema_ids).encode(event)
    schema_id = schema_id_of(record)
    decoder = TableDecoder(schema_ids.text_of)
    cut = data.draw(st.integers(5, len(record) - 1))

    with pytest.raises(
        CorruptRecord, match=r"shop\.orders, near shard .*, seq \d+: the record cannot"
    ):
        decoder.decode(schema_id, [record, record[:cut]])

    assert decoder.decode(schema_id, [record]).num_rows == 1


@settings(max_examples=examples(20))
@given(shapes().flatmap(lambda shape: events(shape, 1)))
def test_a_record_of_another_version_is_refused(event: VEvent) -> None:
    """A record among those of another schema is an error, not a row that is read wrongly."""
    schema_ids = MemorySchemaIds()
    encoder = RecordEncoder(schema_ids)
    row, statement = encoder.encode(event), encoder.encode(statement_event(1, "DROP TABLE t"))
    decoder = TableDecoder(schema_ids.text_of)

    with pytest.raises(CorruptRecord, match="does not begin with a zero and schema id"):
        decoder.decode(schema_id_of(row), [row, statement])
    with pytest.raises(UsageError, match="describes statements"):
        decoder.shape(schema_id_of(statement))
