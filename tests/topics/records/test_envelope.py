"""The reader of the envelope, held against the Avro schema that writers use."""

from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topics.records.events import INT64, TEXTS, TIMES
from topics.records.envelope import EnvelopeReader
from topics.records.envelope_table import EVENT_TYPES, OPS, envelope_fields
from topics.records.table_shape import wire_header

SCHEMA = fastavro.parse_schema({"type": "record", "name": "E", "fields": envelope_fields(1)})
BODY = b"body"

TOKENS = st.fixed_dictionaries({"timestamp_us": TIMES, "shard": TEXTS, "position": TEXTS})
# One value per field, all of them different in type or likely in value.
ENVELOPES = st.fixed_dictionaries(
    {
        "type": st.sampled_from(EVENT_TYPES),
        "seq": INT64,
        "token": st.builds(
            lambda token, origin: {**token, "origin": origin}, TOKENS, st.none() | TOKENS
        ),
        "commit_us": INT64,
        "gtid": TEXTS,
        "row_index": INT64,
        "last": st.booleans(),
        "database": TEXTS,
        "table": TEXTS,
        "op": st.sampled_from(OPS),
        "keyspace_id_before": st.none() | st.binary(max_size=9),
        "keyspace_id_after": st.none() | st.binary(max_size=9),
        "columns_before": st.binary(max_size=9),
        "columns_after": st.binary(max_size=9),
        "invalid_dates": st.lists(
            st.fixed_dictionaries(
                {"image": st.integers(0, 1), "column": st.integers(0, 4000), "text": TEXTS}
            ),
            max_size=3,
            unique_by=lambda found: (found["image"], found["column"]),
        ),
    }
)


def record_of(envelope: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, envelope)
    return wire_header(7) + stream.getvalue() + BODY


def read(reader: EnvelopeReader, record: bytes) -> dict[str, Any]:
    """What the reader finds, by the names of the schema's fields."""
    reader.open(record)
    reader.take_token()
    reader.take_rest(1)
    token = reader.token_text()
    origin = token.origin
    dates = ((0, reader.dates_before), (1, reader.dates_after))
    return {
        "type": EVENT_TYPES[reader.type],
        "seq": reader.seq,
        "token": {
            "timestamp_us": reader.timestamp_us,
            "shard": token.shard,
            "position": reader.position().decode(),
            "origin": origin
            and {
                "timestamp_us": origin.timestamp_us,
                "shard": origin.shard,
                "position": origin.position,
            },
        },
        "commit_us": reader.commit_us,
        "gtid": reader.text_at(reader.gtid_at),
        "row_index": reader.row_index,
        "last": reader.last,
        "database": reader.text_at(reader.database_at),
        "table": reader.text_at(reader.table_at),
        "op": OPS[reader.op],
        "keyspace_id_before": reader.keyspace_id_at(reader.keyspace_id_before_at),
        "keyspace_id_after": reader.keyspace_id_at(reader.keyspace_id_after_at),
        "columns_before": reader.columns_before,
        "columns_after": reader.columns_after,
        "invalid_dates": [
            {"image": image, "column": column, "text": text}
            for image, texts in dates
            for column, text in texts.items()
        ],
    }


@given(st.lists(ENVELOPES, min_size=1, max_size=4))
def test_every_field_of_the_schema_is_read(envelopes: list[dict[str, Any]]) -> None:
    """One reader finds in each of several records what the schema's writer put there."""
    names = [field["name"] for field in envelope_fields(1)]
    reader = EnvelopeReader()

    for envelope in envelopes:
        found = read(reader, record_of(envelope))

        envelope["invalid_dates"].sort(key=lambda date: date["image"])
        assert names == list(found)
        assert envelope == found
        assert reader.cursor.record[reader.cursor.at :] == BODY


@given(ENVELOPES, ENVELOPES, st.data())
def test_a_broken_record_leaves_no_trace(
    first: dict[str, Any], broken: dict[str, Any], data: st.DataObject
) -> None:
    """After a truncated record the reader reads the next one as if nothing had happened."""
    reader = EnvelopeReader()
    expected = read(reader, record_of(first))
    whole = record_of(broken)[: -len(BODY)]

    with pytest.raises((IndexError, ValueError)):
        read(reader, whole[: data.draw(st.integers(5, len(whole) - 1))])

    assert expected == read(reader, record_of(first))


@given(ENVELOPES, st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_token_gets_a_number_when_it_changes(
    envelope: dict[str, Any], is_new: list[bool]
) -> None:
    """Records that follow each other with equal tokens share the token object and its number."""
    reader = EnvelopeReader()
    for changes in [True, *is_new]:
        if changes:
            envelope["token"]["timestamp_us"] += 1
        number = reader.token_number
        token = reader.token_text() if number else None

        read(reader, record_of(envelope))

        assert reader.token_number == number + changes
        assert (reader.token_text() is not token) == changes


@pytest.mark.parametrize("image", [-1, 2])
def test_dates_of_an_unknown_image_are_refused(image: int) -> None:
    """An invalid date must belong to the image before or after."""
    token = {"timestamp_us": 1, "shard": "-", "position": "", "origin": None}
    envelope = {
        **dict.fromkeys(("seq", "commit_us", "row_index"), 1),
        **dict.fromkeys(("gtid", "database", "table"), ""),
        **dict.fromkeys(("columns_before", "columns_after"), b""),
        "type": "ROW",
        "op": "INSERT",
        "last": True,
        "token": token,
        "invalid_dates": [{"image": image, "column": 0, "text": "0000-00-00"}],
    }

    with pytest.raises(ValueError, match=f"image {image}"):
        read(EnvelopeReader(), record_of(envelope))
