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
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from event_token.errors import UsageError
from event_token.position import StreamPosition
from spark_consumers.change_log.delta_files import FORMAT, FORMAT_MARK, check_format
from spark_consumers.decoding.output_columns import PRESENT_OP
from spark_consumers.errors import ChangeLogConflict
from spark_consumers.sink_query.origin import Origin

TABLE_SETTINGS = {"delta.appendOnly": "true"}
# Columns that change logs of version 0.1.0 lack.
ADDED_COLUMNS = frozenset({"keyspace_id_before", "keyspace_id_after", PRESENT_OP})
FRONTIER_KEY = "shardstream.frontier_us"
POSITION_KEY = "shardstream.position"
BATCH_KEY = "shardstream.batch_id"
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
class Batch:
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


def query_mark(query: str) -> str:
    """Return the name of the mark that holds a query's last batch."""
    return f"shardstream.query.{query}"


def shard_mark(shard: str) -> str:
    """Return the name of the mark that holds a shard's last seq."""
    return f"shardstream.seq.{shard}"


def hopped_mark(shard: str) -> str:
    """Return the name of the mark of a shard that was hopped to without marks."""
    return f"shardstream.hopped.{shard}"


def partial_mark(shard: str) -> str:
    """Return the name of the mark of a shard of which only a key range is in the table."""
    return f"shardstream.partial.{shard}"


def is_replay(batch: Batch, last_batch: int | None, last_seqs: Mapping[str, int | None]) -> bool:
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
    """Create the table unless it exists, and add columns that an earlier release did not write.

    `origin`: the stream that is written; TargetConflict if the table tells another one. UsageError
    when its other columns are not those of the query.
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
    stored = table.metadata().configuration
    if origin is not None and origin.is_in(stored):
        origin.check(stored, f"the change log {path}")
    fields = Schema.from_arrow(schema).fields
    missing = [
        f for f in fields if f.name in ADDED_COLUMNS - {g.name for g in table.schema().fields}
    ]
    if missing:
        table.alter.add_columns(missing)
    found = [(f.name, str(f.type)) for f in table.schema().fields]
    wanted = [(f.name, str(f.type)) for f in fields]
    if found != wanted:
        differ = sorted({name for name, _ in set(found) ^ set(wanted)})
        raise UsageError(
            f"the Delta table {path} and this query differ in columns ({', '.join(differ)}): "
            f"write to a new table"
        )


def open_table(path: str, storage_options: Mapping[str, str]) -> DeltaTable:
    """Open the newest version of the table. Halt on a format of another release."""
    table = DeltaTable(path, storage_options=dict(storage_options))
    check_format(table)
    return table


def record_origin(table: DeltaTable, origin: Origin) -> None:
    """Let a change log of 0.1.0 tell its stream, of which it has just taken a batch.

    Not before: a query of another stream must not leave its own name in a log that refuses it.
    """
    if not origin.is_in(table.metadata().configuration):
        table.update_incremental()
        table.alter.set_table_properties(origin.properties(), raise_if_not_exists=False)


def commit(table: DeltaTable, schema: pa.Schema, batch: Batch) -> bool:
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
    properties = CommitProperties(app_transactions=marks, custom_metadata=_metadata(batch))
    try:
        table.create_write_transaction(
            [_add_action(file) for file in batch.files],
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
    """Return the position up to which the table has the stream, None if no commit tells.

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


def _metadata(batch: Batch) -> dict[str, str]:
    found = {BATCH_KEY: str(batch.batch_id)}
    if batch.end is not None:
        found[FRONTIER_KEY] = str(batch.end.frontier_us)
        found[POSITION_KEY] = batch.end.to_string()
    return found


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values={},
        modification_time=file.modified_ms,
        data_change=True,
        stats=file.stats,
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
