"""Writes the rows of a task as sorted Parquet files into the table's folder.

Files of a failed task or a replayed batch never become part of the table. They stay as orphans
until `DeltaTable(path).vacuum(full=True, dry_run=False)` removes those older than a week. Nothing
else may remove them, because the commit may have succeeded without Spark's knowledge.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from spark_consumers.change_log.delta_commit import SeqSpan, WrittenFile, file_stats, join_spans

# The order of the merged stream.
ORDER = ("timestamp_us", "shard", "offset")
# Enough to find files by shard and time; statistics of text columns would bloat the table's log.
STATS_COLUMNS = ("timestamp_us", "shard", "seq", "offset", "database", "table")
# Arrow bytes that a task collects before it sorts and writes a file: two tasks must fit beside
# Spark on a small machine, and Parquet files of this size read well.
FILE_ARROW_BYTES_MAX = 128 * 1024 * 1024


def write_files(
    path: str, batches: Iterable[pa.RecordBatch], storage_options: Mapping[str, str]
) -> tuple[list[WrittenFile], dict[str, SeqSpan]]:
    """Write the batches of a task; return the files and the seqs of each shard."""
    # The handler resolves URLs such as s3:// as delta-rs does, with the same options.
    handler: Any = DeltaStorageHandler(path, dict(storage_options))
    filesystem = fs.PyFileSystem(handler)
    files = []
    spans: dict[str, SeqSpan] = {}
    for table in _gather(batches):
        ordered = in_order(table)
        files.append(_write_file(filesystem, ordered))
        spans = join_spans([spans, seq_spans(ordered)])
    return files, spans


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        gathered.append(batch)
        size += batch.nbytes
        if size >= FILE_ARROW_BYTES_MAX:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def in_order(table: pa.Table) -> pa.Table:
    """Return the rows in merged order; rows of one shard usually are."""
    times = table["timestamp_us"].to_numpy()
    offsets = table["offset"].to_numpy()
    is_one_shard = pc.count_distinct(table["shard"]).as_py() == 1
    if is_one_shard and bool(
        (times[1:] >= times[:-1]).all() and (offsets[1:] > offsets[:-1]).all()
    ):
        return table
    return table.sort_by([(name, "ascending") for name in ORDER])


def seq_spans(table: pa.Table) -> dict[str, SeqSpan]:
    """Return the first seq, last seq and number of rows per shard."""
    grouped = table.group_by("shard").aggregate([("seq", "min"), ("seq", "max"), ("seq", "count")])
    return {
        row["shard"]: SeqSpan(row["seq_min"], row["seq_max"], row["seq_count"])
        for row in grouped.to_pylist()
    }


def _write_file(filesystem: fs.FileSystem, table: pa.Table) -> WrittenFile:
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    with filesystem.open_output_stream(name) as out:
        with pq.ParquetWriter(out, table.schema, compression="zstd") as writer:
            writer.write_table(table)
        size = out.tell()
    bounds = {}
    for column in STATS_COLUMNS:
        if column in table.column_names:
            least = pc.min_max(table[column]).as_py()
            bounds[column] = (least["min"], least["max"])
    return WrittenFile(name, size, int(time.time() * 1000), file_stats(table.num_rows, bounds))
