"""`writeStream.format("shardstream_state")`: keeps the present rows of all tables in Delta tables.

Tasks merge the changes with the rows that are stored and write files; the driver commits them. The
rows must be those of `run.state_frame`.

| option | meaning |
|---|---|
| path | folder or URL of the target: one table per table of the database (required) |
| checkpointLocation | the query's checkpoint (required, set on the query itself) |
| kafka.*, registryUrl | as those of format shardstream: the tasks read schemas |
| partitions | number of tasks, that of `state_frame` (default: 2) |
| buckets | buckets of a new table, a power of two (default: as many as partitions) |
| deletionVectors | `true` (default), or `false`: rewrite files, for readers without vectors |
| onTypeChange | `halt` (default) where no type holds both versions of a column, or `new-column` |
| tables | JSON list of tables that are kept, `database.table` (default: all) |
| history | JSON object: tables whose history is kept, and the columns that are tracked ([]: all) |
| keyspace, keyRange, keyScope | those of format shardstream, which the target keeps |
| onTruncate | `apply` (default), or `stop` at a TRUNCATE or DROP of a table |
| onSameKey | `stop` (default): list keys that have several live rows, or `newest` |
| onPartial | `stop` (default) where a partial row image meets no stored row, or `insert-nulls` |
| dropColumns | `true`: drop columns that no shard has any more (default: `false`) |
| storage.*, secret.storage.* | storage options for the tables; Spark hides the latter |

`writeStream.format("shardstream_history")` does the same for one table and keeps its history. It
has options `table` (required, `database.table`) and `track` (JSON list of the tracked columns)
instead of `tables` and `history`.
"""

import json
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from event_token.errors import UsageError
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.applying.unlogged import stop_at_unlogged
from spark_consumers.current_state.history.begin import begin_histories
from spark_consumers.current_state.query.batch_commit import commit_batch
from spark_consumers.current_state.query.dropping import drop_columns
from spark_consumers.current_state.query.frontiers import Frontiers
from spark_consumers.current_state.query.task import TableWork, Target, TaskTables
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.sink_query.batch_id import batch_id, task
from spark_consumers.sink_query.checkpoint_files import batch_span, query_id
from spark_consumers.sink_query.frame import ROUTE, SINK_COLUMNS
from spark_consumers.sink_query.origin import given_origin
from spark_consumers.sink_query.resume import PlannedBatch
from spark_consumers.sink_query.same_keys import OnSameKey
from spark_consumers.sink_query.secret_spec import storage_of
from spark_consumers.sink_query.unlogged_copies import UnloggedCopies
from spark_consumers.source.options import KAFKA_PREFIX
from spark_consumers.source.read_tasks import schema_ids_of
from topics.kafka.client import ClientConfig

_Choice = TypeVar("_Choice", bound=StrEnum)

SINK_FORMAT = "shardstream_state"
HISTORY_FORMAT = "shardstream_history"
# As many tasks as a small machine has processors.
PARTITIONS_DEFAULT = 2
NEEDED = (*(name for name in SINK_COLUMNS if name != "token"), ROUTE)


@dataclass
class TaskWork(WriterCommitMessage):
    """What one task did."""

    works: list[TableWork]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The sink's options."""

    target: Target
    checkpoint: str
    kafka: ClientConfig
    registry_url: str | None

    @classmethod
    def parse(cls, options: Any) -> "SinkOptions":
        """Parse the options; UsageError when one is missing or bad."""
        path, checkpoint = options.get("path"), options.get("checkpointLocation")
        if not path:
            raise UsageError("set option path to the folder or URL of the target")
        if not checkpoint:
            raise UsageError(
                "set option checkpointLocation on the query: the checkpoint tells where batches "
                "begin and end"
            )
        partitions = _number(options, "partitions", PARTITIONS_DEFAULT)
        buckets = _number(options, "buckets", partitions)
        check_partitions(partitions, buckets)
        on_partial = _choice(options, "onPartial", OnPartial.STOP)
        histories = _histories(json.loads(options.get("history", "{}")))
        check_partial(histories, on_partial)
        return cls(
            Target(
                path.rstrip("/"),
                storage_of(options),
                partitions,
                buckets,
                deletion_vectors=_flag(options, "deletionVectors", "true"),
                accept_skip=frozenset(json.loads(options.get("acceptSkip", "[]"))),
                on_truncate=_choice(options, "onTruncate", OnTruncate.APPLY),
                tables=named_tables(json.loads(options.get("tables", "[]"))),
                on_type_change=_choice(options, "onTypeChange", OnTypeChange.HALT),
                histories=histories,
                key_scope=_choice(options, "keyScope", KeyScope.KEYSPACE),
                origin=given_origin(options),
                on_same_key=_choice(options, "onSameKey", OnSameKey.STOP),
                on_partial=on_partial,
                drop_columns=_flag(options, "dropColumns", "false"),
            ),
            checkpoint,
            ClientConfig(_prefixed(options, KAFKA_PREFIX)),
            options.get("registryUrl"),
        )


def named_tables(names: Sequence[str]) -> frozenset[tuple[str, str]] | None:
    """Return names (`database.table`) as (database, table); None: all. UsageError: a wrong one."""
    return frozenset(map(_table, names)) or None


def _histories(columns: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Sequence[str]]:
    return {_table(name): tracked for name, tracked in columns.items()}


def _table(name: str) -> tuple[str, str]:
    database, _, table = name.partition(".")
    if not database or not table:
        raise UsageError(f"table {name!r}: name a table as database.table")
    return database, table


def _choice(options: Any, name: str, default: _Choice) -> _Choice:
    text = options.get(name, default)
    try:
        return type(default)(text)
    except ValueError:
        allowed = " or ".join(type(default))
        raise UsageError(f"option {name} is {text!r}: {allowed}") from None


def _flag(options: Any, name: str, default: str) -> bool:
    text = options.get(name, default)
    if text not in {"true", "false"}:
        raise UsageError(f"option {name} is {text!r}: true or false")
    return bool(text == "true")


def _prefixed(options: Any, prefix: str) -> dict[str, str]:
    found = {name: text for name, text in options.items() if name.startswith(prefix)}
    return {name[len(prefix) :]: text for name, text in found.items()}


def _number(options: Any, name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"option {name} is {text!r}, not a number")
    return int(text)


def check_partial(histories: Collection[object], on_partial: OnPartial) -> None:
    """UsageError if rows without all their columns would go into a history."""
    if histories and on_partial is OnPartial.INSERT_NULLS:
        raise UsageError(
            "--partial insert-nulls: a history would keep values that no row had as those of a "
            "version. Leave it out, or keep no --history, in a new target"
        )


def check_partitions(partitions: int, buckets: int) -> None:
    """Raise UsageError unless both are powers of two, and each task has a bucket."""
    for name, number in (("partitions", partitions), ("buckets", buckets)):
        if number < 1 or number & (number - 1):
            raise UsageError(f"{name}: {number} is not a power of two")
    if buckets < partitions:
        raise UsageError(
            f"buckets: {buckets} are fewer than the {partitions} partitions, and a task writes "
            f"whole buckets"
        )


def _check_token(histories: Collection[object], columns: Collection[str]) -> None:
    """UsageError if rows lack the column that a history keeps."""
    if histories and "token" not in columns:
        raise UsageError("a history needs column token: write rows of state_frame(token=True)")


def _check_rows(schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise UsageError("only output mode append is supported")
    missing = [name for name in NEEDED if name not in schema.names]
    if missing:
        raise UsageError(f"the rows lack {', '.join(missing)}: write those of state_frame")


class StateSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SINK_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "StateWriter":
        """Return the writer of a query; UsageError on bad options or missing columns."""
        try:
            _check_rows(schema, overwrite=overwrite)
            parsed = SinkOptions.parse(self.sink_options())
            _check_token(parsed.target.histories, schema.names)
        except UsageError as error:
            raise UsageError(f"{self.name()}: {error}") from error
        begin_histories(parsed.target)
        drop_columns(parsed.target, Frontiers(parsed.target.path, parsed.target.storage).newest())
        return StateWriter(parsed)

    def sink_options(self) -> MutableMapping[str, str]:
        """Return the options that the query has, under the names of this module."""
        return CaseInsensitiveDict(self.options)


class HistorySink(StateSink):
    """The format for one table whose history is kept, in the same query as its present rows."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return HISTORY_FORMAT

    def sink_options(self) -> MutableMapping[str, str]:
        """Return the options of the table. UsageError where they are those of several."""
        options = super().sink_options()
        table, tracked = options.get("table"), json.loads(options.get("track", "[]"))
        if not table or "tables" in options or "history" in options:
            raise UsageError(
                f"set option table to one table, as database.table; {SINK_FORMAT} has options "
                f"tables and history for several"
            )
        options["tables"], options["history"] = json.dumps([table]), json.dumps({table: tracked})
        return options


class StateWriter(DataSourceStreamArrowWriter):
    """Merges on executors and commits on the driver."""

    def __init__(self, options: SinkOptions) -> None:
        """Keep the options."""
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWork:
        """Merge the rows of a task with those that are stored."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return TaskWork([])
        options = self._options
        tables, decoder = _worker(options)
        query = query_id(options.checkpoint, options.target.storage)
        rows = pa.Table.from_batches(batches)
        return TaskWork(tables.work(rows, decoder, (query, batch_id()), task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, also one without rows: its frontier moves on."""
        target, checkpoint = self._options.target, self._options.checkpoint
        begin, end = batch_span(checkpoint, batchId, target.storage)
        batch = PlannedBatch(query_id(checkpoint, target.storage), batchId, begin, end)
        done = [message for message in messages if isinstance(message, TaskWork)]
        commit_batch(target, [work for each in done for work in each.works], batch)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: a commit may have succeeded without Spark's knowledge."""


_WORKERS: dict[str, tuple[TaskTables, RecordDecoder]] = {}


def _worker(options: SinkOptions) -> tuple[TaskTables, RecordDecoder]:
    """Return what this worker process keeps between tasks."""
    found = _WORKERS.get(options.target.path)
    if found is None or found[0].target != options.target:
        schema_ids = schema_ids_of(options.kafka, options.registry_url)
        decoder = RecordDecoder(schema_ids.text_of, options.target.key_scope)
        origin = options.target.origin
        on_unlogged = (
            stop_at_unlogged if origin is None else UnloggedCopies(options.kafka, origin.keyspace)
        )
        found = TaskTables(options.target, on_unlogged), decoder
        _WORKERS[options.target.path] = found
    return found
