"""Rows of a change log, written without Spark."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from event_token.position import StreamPosition
from sinks.lake.change_log.delta_commit import (
    LogBatch,
    SeqSpan,
    WrittenFile,
    commit,
    ensure_table,
    join_spans,
    open_table,
    write_files,
)

SCHEMA = pa.schema(
    [
        ("type", pa.string()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("key", pa.string()),
        ("old_key", pa.string()),
        ("absent", pa.string()),
        ("shard", pa.string()),
        ("seq", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp_us", pa.int64()),
        ("gtid", pa.string()),
        ("statement", pa.string()),
        ("token", pa.string()),
        ("keyspace_id_before", pa.binary()),
        ("keyspace_id_after", pa.binary()),
    ]
)


def change(seq: int, **more: object) -> dict[str, object]:
    """A row of the change log."""
    row: dict[str, object] = dict.fromkeys(SCHEMA.names)
    row |= {"type": "ROW", "database": "shop", "table": "orders", "shard": "-80"}
    return row | {"seq": seq, "offset": seq * 2, "timestamp_us": seq * 10} | more


def write_rows(
    target: str, rows: Sequence[Mapping[str, object]], storage: Mapping[str, str], schema: pa.Schema
) -> tuple[list[WrittenFile], dict[str, SeqSpan]]:
    """Write rows to files of a table; return them and the seqs of each shard."""
    written = list(write_files(target, [pa.RecordBatch.from_pylist(rows, schema)], storage))
    return [file for file, _ in written], join_spans(spans for _, spans in written)


def batch_of(
    target: str, seqs: Sequence[int], batch_id: int, query: str, storage: Mapping[str, str]
) -> LogBatch:
    """Write changes to files of a table; return the batch that would commit them."""
    files, spans = write_rows(target, [change(seq) for seq in seqs], storage, SCHEMA)
    return LogBatch(batch_id, query, spans, files, None, contiguous=True)


def commit_rows(
    target: str,
    rows: Sequence[Mapping[str, object]],
    batch_id: int,
    *,
    query: str = "q",
    contiguous: bool = True,
    hopped: frozenset[str] = frozenset(),
    schema: pa.Schema = SCHEMA,
    end: StreamPosition | None = None,
) -> bool:
    """Write and commit rows as one batch of a query, which ends at `end`."""
    ensure_table(target, schema, {})
    files, spans = write_rows(target, rows, {}, schema)
    batch = LogBatch(batch_id, query, spans, files, end, contiguous, hopped)
    return commit(open_table(target, {}), schema, batch)
