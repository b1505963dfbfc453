"""Commits batches of the change log to its Delta table, each change exactly once.

Every commit carries marks, stored as Delta application transactions, which survive log clean-up:
- per query (the id in its checkpoint): the last batch in the table. If Spark dies between our
  commit and its own, it runs the batch again; the mark shows that there is nothing to write.
- per shard: the last `seq` in the table. A second query, or one that lost its checkpoint, can
  neither repeat changes nor skip some silently.
- per table: its number of rows, so that nobody has to count them, and its format.
- per shard that the stream hopped to without marks: its seqs may have holes, because rows that
  were read before the hop are left out. The same holds for a shard of which the query reads a key
  range only.
delta-rs neither skips a stale transaction nor stops a mark from going down. Of two concurrent
commits with the same mark, the second one fails.

Tasks write their rows as sorted Parquet files into the table's folder. Files of a failed task or a
replayed batch never become part of the table. They stay as orphans until `shardstream changelog
vacuum` removes those older than a week (delta-rs's default). Nothing else may remove them, because
the commit may have succeeded without Spark's knowledge.
"""

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction
from pyarrow import fs

from event_token import KeyRange, ShardName
from event_token.errors import Halt, UsageError
from event_token.position import StreamPosition
from sinks.errors import ChangeLogConflict
from sinks.lake.delta.log import FORMAT_MARK, POSITION_KEY, batch_info, query_mark, shard_mark
from sinks.lake.delta.storage import filesystem_of
from sinks.resume import Origin
from topics.arrow.output_columns import OutputColumns

# Of columns, marks and commit information. A table without any batch has no mark of it.
FORMAT = 1
TABLE_SETTINGS = {"delta.appendOnly": "true"}
ROWS_MARK = "shardstream.rows"
# Each commit is a file, and a log may have a million. More commits by others are hardly ever last.
LOOKED_AT_FIRST = 20


@dataclass(frozen=True, slots=True)
class SeqSpan:
    """The rows of one shard in a batch: their number, and their first and last seq."""

    first: int
    last: int
    rows: int

    def joined(self, other: "SeqSpan") -> "SeqSpan":
        """Return one span that covers both."""
        return SeqSpan(
            min(self.first, other.first), max(self.last, other.last), self.rows + other.rows
        )


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A Parquet file in the table's folder that no commit has added yet."""

    path: str
    size: int
    modified_ms: int
    stats: str


@dataclass(frozen=True, slots=True)
class LogBatch:
    """A batch to commit.

    `contiguous`: the query takes every record of its shards, except of the `hopped` ones, which
    the stream hopped to without marks, and the `partial` ones, of which it reads a key range.
    """

    batch_id: int
    query_id: str
    spans: Mapping[str, SeqSpan]
    files: Sequence[WrittenFile]
    end: StreamPosition | None
    contiguous: bool
    hopped: frozenset[str] = frozenset()
    partial: frozenset[str] = frozenset()


def hopped_mark(shard: str) -> str:
    """Return the name of the mark of a shard that was hopped to without marks."""
    return f"shardstream.hopped.{shard}"


def partial_mark(shard: str) -> str:
    """Return the name of the mark of a shard of which only a key range is in the table."""
    return f"shardstream.partial.{shard}"


def is_replay(batch: LogBatch, last_batch: int | None, last_seqs: Mapping[str, int | None]) -> bool:
    """Tell whether the table already holds a batch.

    ChangeLogConflict when the batch is neither a replay nor the next one: committing it would
    repeat changes or leave some out.
    """
    if last_batch is not None and batch.batch_id <= last_batch:
        for shard, span in batch.spans.items():
            last = last_seqs[shard]
            if last is None or span.last > last:
                raise ChangeLogConflict(
                    f"batch {batch.batch_id} of query {batch.query_id} is in the change log, but "
                    f"shard {shard} only up to seq {last} of {span.last}: the checkpoint was "
                    f"reset or restored"
                )
        return True
    for shard, span in batch.spans.items():
        contiguous = batch.contiguous and shard not in batch.hopped | batch.partial
        _check_follows(shard, span, last_seqs[shard], contiguous=contiguous)
    return False


def _check_follows(shard: str, span: SeqSpan, last: int | None, *, contiguous: bool) -> None:
    if last is not None and span.first <= last:
        raise ChangeLogConflict(
            f"the change log holds shard {shard} up to seq {last}, but this query begins at seq "
            f"{span.first} and would repeat changes: its checkpoint was lost, or another query "
            f"writes to the table"
        )
    if not contiguous:
        return
    if last is not None and span.first != last + 1:
        raise ChangeLogConflict(
            f"the change log holds shard {shard} up to seq {last}, but this query begins at seq "
            f"{span.first} and would leave changes out"
        )
    if span.rows != span.last - span.first + 1:
        raise ChangeLogConflict(
            f"the batch has {span.rows} rows of shard {shard} for seq {span.first} to {span.last}"
        )


def ensure_table(
    path: str,
    schema: pa.Schema,
    storage_options: Mapping[str, str],
    origin: Origin | None = None,
) -> None:
    """Create the table unless it exists.

    `origin`: the stream that is written; TargetConflict if the table has another one. UsageError
    when the table's columns are not those of the query.
    """
    DeltaTable.create(
        path,
        schema=schema,
        mode="ignore",
        name="changelog",
        description="Every change of the merged stream once, appended in its order",
        configuration=TABLE_SETTINGS | ({} if origin is None else origin.properties()),
        storage_options=dict(storage_options),
        raise_if_key_not_exists=False,
    )
    table = open_table(path, storage_options)
    if origin is not None:
        origin.check(table.metadata().configuration, f"the change log {path}")
    found = [(f.name, str(f.type)) for f in table.schema().fields]
    wanted = [(f.name, str(f.type)) for f in Schema.from_arrow(schema).fields]
    if found != wanted:
        differ = sorted({name for name, _ in set(found) ^ set(wanted)})
        raise UsageError(
            f"the Delta table {path} and this query differ in columns ({', '.join(differ)}): "
            f"write to a new table"
        )


def open_table(path: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open the newest version of the table. Halt on a format of another release."""
    table = DeltaTable(path, storage_options=dict(storage_options))
    found = table.transaction_version(FORMAT_MARK)
    if found not in {None, FORMAT}:
        raise Halt(
            f"{path}: format {found} of the change log is not known: use the release that wrote it"
        )
    return table


def commit(table: DeltaTable, schema: pa.Schema, batch: LogBatch) -> bool:
    """Add the files of a batch to a table; return False if the table held the batch already.

    ChangeLogConflict: see `is_replay`; also if another writer committed since the table was opened.
    """
    last_seqs = {shard: table.transaction_version(shard_mark(shard)) for shard in batch.spans}
    last_batch = table.transaction_version(query_mark(batch.query_id))
    try:
        if is_replay(batch, last_batch, last_seqs):
            return False
    except ChangeLogConflict as error:
        raise ChangeLogConflict(f"{error}. {_way_on(table)}") from error
    marks = [Transaction(query_mark(batch.query_id), batch.batch_id)]
    marks.append(Transaction(FORMAT_MARK, FORMAT))
    marks += [Transaction(shard_mark(shard), span.last) for shard, span in batch.spans.items()]
    marks += [Transaction(hopped_mark(shard), 1) for shard in batch.hopped & batch.spans.keys()]
    marks += [Transaction(partial_mark(shard), 1) for shard in batch.partial & batch.spans.keys()]
    rows_before = table.transaction_version(ROWS_MARK) or 0
    rows_added = sum(span.rows for span in batch.spans.values())
    marks.append(Transaction(ROWS_MARK, rows_before + rows_added))
    info = batch_info(batch.batch_id, batch.end)
    properties = CommitProperties(app_transactions=marks, custom_metadata=info)
    try:
        table.create_write_transaction(
            [
                AddAction(
                    path=file.path,
                    size=file.size,
                    partition_values={},
                    modification_time=file.modified_ms,
                    data_change=True,
                    stats=file.stats,
                )
                for file in batch.files
            ],
            mode="append",
            schema=schema,
            commit_properties=properties,
        )
    except DeltaError as error:
        if "oncurrent transaction" not in str(error):
            raise
        raise ChangeLogConflict(
            f"another query wrote to {table.table_uri} at the same time: {error}"
        ) from error
    return True


def end_position(table: DeltaTable) -> str | None:
    """Return the position up to which the table has the stream, None if no commit has it.

    Commits by others, such as OPTIMIZE, have none.
    """
    for commits_max in (LOOKED_AT_FIRST, None):
        positions = (commit.get(POSITION_KEY) for commit in table.history(commits_max))
        found = next((position for position in positions if position is not None), None)
        if found is not None:
            return str(found)
    return None


def _way_on(table: DeltaTable) -> str:
    """Return how to continue a table that a query's checkpoint does not fit."""
    position = end_position(table)
    if position is None:
        return "Write to a new table, with a new checkpoint"
    return (
        f"If no other query writes to it, remove the checkpoint and continue where the change log "
        f"ends: start from (--from) {position}"
    )


def file_stats(rows: int, bounds: Mapping[str, tuple[object, object]]) -> str:
    """Return Delta's statistics of a file as JSON: number of rows, least and greatest values."""
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {name: low for name, (low, _) in bounds.items()},
            "maxValues": {name: high for name, (_, high) in bounds.items()},
            "nullCount": dict.fromkeys(bounds, 0),
        }
    )


def check_disjoint(found: Iterable[Mapping[str, SeqSpan]]) -> None:
    """ChangeLogConflict when two files of a batch hold the same records of a shard."""
    by_shard: dict[str, list[SeqSpan]] = {}
    for spans in found:
        for shard, span in spans.items():
            by_shard.setdefault(shard, []).append(span)
    for shard, each in by_shard.items():
        for before, after in pairwise(sorted(each, key=lambda span: span.first)):
            if after.first <= before.last:
                raise ChangeLogConflict(
                    f"two files of a batch hold shard {shard} from seq {after.first} to "
                    f"{min(before.last, after.last)}: Spark has run a task twice and kept both "
                    f"results. Start the query again: it runs the batch again"
                )


def join_spans(found: Iterable[Mapping[str, SeqSpan]]) -> dict[str, SeqSpan]:
    """Combine the spans of all tasks, by shard."""
    joined: dict[str, SeqSpan] = {}
    for spans in found:
        for shard, span in spans.items():
            joined[shard] = joined[shard].joined(span) if shard in joined else span
    return joined


@dataclass(frozen=True, slots=True)
class ChangeLogSpec:
    """The table, and the part of the stream that it gets.

    `output` and `schema` are its columns: as the tasks decode them, and as the files have them.
    `storage` are options of delta-rs.
    """

    path: str
    storage: Mapping[str, str]
    output: OutputColumns
    schema: pa.Schema
    origin: Origin

    @property
    def contiguous(self) -> bool:
        """Whether the query takes every record of its shards: a table's own log has holes."""
        return self.output.shape is None

    def has_whole(self, shard: str) -> bool:
        """Tell whether the query reads the whole key range of a shard; else it has holes too."""
        key_range = KeyRange.parse(self.origin.key_range)
        return key_range.includes(ShardName.parse(shard).key_range)


# The order of the merged stream.
ORDER = ("timestamp_us", "shard", "offset")
# Enough to find files by shard and time; statistics of text columns would bloat the table's log.
STATS_COLUMNS = ("timestamp_us", "shard", "seq", "offset", "database", "table")
# Columns whose values repeat. Building a dictionary of the others takes a quarter of the time of
# writing, for nothing.
REPEATED = frozenset(
    (
        *("type", "database", "table", "op", "statement", "absent", "invalid_dates", "shard"),
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
    filesystem = filesystem_of(path, storage_options)
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
