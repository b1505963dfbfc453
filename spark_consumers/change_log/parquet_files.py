"""Writes the rows of a task as sorted Parquet files into the table's folder.

Files of a failed task or a replayed batch never become part of the table. They stay as orphans
until `shardstream changelog vacuum` removes those older than a week (delta-rs's default). Nothing
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

from spark_consumers.change_log.delta_commit import SeqSpan, WrittenFile, file_stats

# The order of the merged stream.
ORDER = ("timestamp_us", "shard", "offset")
# Enough to find files by shard and time; statistics of text columns would bloat the table's log.
STATS_COLUMNS = ("timestamp_us", "shard", "seq", "offset", "database", "table")
# Columns whose values repeat. Building a dictionary of the others takes a quarter of the time of
# writing, for nothing.
REPEATED = frozenset(
    (
        *("type", "database", "table", "op", "statement", "absent", "off_calendar", "shard"),
        *("schema_id", "row_index", "gtid", "token"),
    )
)
# Each is a little more than the one before: as differences they take next to no room.
RISING = frozenset(("seq", "offset", "timestamp_us", "commit_us"))
# Arrow bytes that a task collects before it sorts and writes a file: two tasks must fit beside
# Spark on a small machine, and Parquet files of this size read well.
FILE_ARROW_BYTES_MAX = 128 * 1024 * 1024


def write_files(
    path: str, batches: Iterable[pa.RecordBatch], storage_options: Mapping[str, str]
) -> Iterator[tuple[WrittenFile, dict[str, SeqSpan]]]:
    """Write the batches of a task; yield each file with the seqs of each shard in it."""
    # The handler resolves URLs such as s3:// as delta-rs does, with the same options.
    handler: Any = DeltaStorageHandler(path, dict(storage_options))
    filesystem = fs.PyFileSystem(handler)
    for table in _gather(batches):
        ordered = in_order(table)
        yield _write_file(filesystem, ordered), seq_spans(ordered)


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
        with pq.ParquetWriter(
            out,
            table.schema,
            compression="zstd",
            use_dictionary=_with_dictionary(table.schema),
            column_encoding={n: "DELTA_BINARY_PACKED" for n in table.column_names if n in RISING},
            write_statistics=[n for n in table.column_names if n in STATS_COLUMNS],
        ) as writer:
            writer.write_table(table)
        size = out.tell()
    bounds = {}
    for column in STATS_COLUMNS:
        if column in table.column_names:
            least = pc.min_max(table[column]).as_py()
            bounds[column] = (least["min"], least["max"])
    return WrittenFile(name, size, int(time.time() * 1000), file_stats(table.num_rows, bounds))


def _with_dictionary(schema: pa.Schema) -> list[str]:
    """Return the columns that get a dictionary: REPEATED and, where an image is typed, its own."""
    found = [name for name in schema.names if name in REPEATED]
    for image in schema:
        if pa.types.is_struct(image.type):
            found += [f"{image.name}.{column.name}" for column in image.type]
    return found
