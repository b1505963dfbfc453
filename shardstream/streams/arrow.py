"""Batches of a stream as Arrow IPC streams, one after the other."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from event_token.errors import ShardstreamError
from shardstream.streams.encoding import Reached, error_json
from topics.arrow.event_batches import EventBatch
from topics.records.event_json import event_to_json_text

# The position behind a batch, in the metadata of the last record batch of what it holds.
POSITION_KEY: Final = "position"
# What is no row: a JSON object each.
EVENT_SCHEMA: Final = pa.schema([pa.field("event", pa.string(), nullable=False)])


def arrow_streams(batch: EventBatch) -> list[bytes]:
    """Return an IPC stream per table version, and one of what is no row; the last has `position`.

    The schema's metadata has `database`, `table` and `schema_id`; there are none for what is no
    row.
    """
    parts = [
        each.rows.replace_schema_metadata(
            {"database": each.database, "table": each.table, "schema_id": str(each.schema_id)}
        )
        for each in batch.tables
    ]
    if batch.events:
        parts.append(
            _of_texts([event_to_json_text(event, with_position=False) for event in batch.events])
        )
    position = {POSITION_KEY: batch.position.to_string()}
    return [_stream(part, position if part is parts[-1] else {}) for part in parts]


def arrow_watermark(reached: Reached) -> bytes:
    """Return an IPC stream of one watermark."""
    return _stream(_of_texts([reached.text]), {POSITION_KEY: reached.position_text})


def arrow_error(error: ShardstreamError) -> bytes:
    """Return an IPC stream of one error, without a position."""
    return _stream(_of_texts([json.dumps(error_json(error))]), {})


def _of_texts(texts: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(texts, pa.string())], schema=EVENT_SCHEMA)


def _stream(batch: pa.RecordBatch, metadata: Mapping[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch, custom_metadata=dict(metadata) or None)
    return bytes(sink.getvalue())
