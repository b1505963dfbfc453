"""The current state: keeps the present rows of all tables in Delta tables.

`run_state` runs the query; `writeStream.format("shardstream_state")` is for your own queries.

Tasks merge the changes with the rows that are stored and write files; the driver commits them. The
rows must be those of `state_frame`.

| option | meaning |
|---|---|
| path | folder or URL of the target: one table per table of the database (required) |
| checkpointLocation | the query's checkpoint (required, set on the query itself) |
| kafka.*, registryUrl | as those of format shardstream: the tasks read schemas |
| keyspace, keyRange, keyScope | those of format shardstream, which the target keeps |
| storage.*, secret.storage.* | storage options for the tables; Spark hides the latter |

All others are the fields of `StateOptions` in camelCase, such as `onTypeChange`; lists and mappings
(`tables`, `acceptSkip`, `history`) are JSON. `partitions` is that of `state_frame`.

`writeStream.format("shardstream_history")` does the same for one table and keeps its history. It
has options `table` (required, `database.table`) and `track` (JSON list of the tracked columns)
instead of `tables` and `history`.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Unpack, get_type_hints

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from event_token.errors import UsageError
from sinks.lake.state.batch_commit import commit_batch, drop_columns
from sinks.lake.state.frontiers import Frontiers, check_kept
from sinks.lake.state.history import begin_histories
from sinks.lake.state.options import PARTITIONS_DEFAULT, StateOptions, StateTarget
from sinks.lake.state.task import TableWork, TaskTables
from sinks.resume import Applied, given_origin, resumed
from sinks.rule.statements import stop_at_unlogged
from sinks.same_keys import SameKeyWatch
from sinks.unlogged_copies import UnloggedCopies
from spark_consumers.sink_query import (
    Running,
    SinkProgress,
    batch_id,
    checkpoint_state,
    planned_batch,
    query_id,
    query_of,
    routed,
    run_query,
    sink_frame,
    storage_of,
    task,
)
from spark_consumers.source.data_source import schema_ids_of
from spark_consumers.source.options import KAFKA_PREFIX, SourceOptions
from spark_consumers.spark_errors import translated
from topics.arrow.decoders import TableDecoder
from topics.arrow.key_scope import KeyScope
from topics.arrow.output_columns import ROUTE, SINK_COLUMNS
from topics.kafka.client import ClientConfig

STATE_FORMAT = "shardstream_state"
HISTORY_FORMAT = "shardstream_history"
NEEDED = (*(name for name in SINK_COLUMNS if name != "token"), ROUTE)


@dataclass
class TaskWork(WriterCommitMessage):
    """What one task did."""

    works: list[TableWork]


def parse_options(options: Mapping[str, str]) -> "StateWriter":
    """Parse the options of a query; UsageError when one is missing or bad."""
    path, checkpoint = options.get("path"), options.get("checkpointLocation")
    if not path:
        raise UsageError("set option path to the folder or URL of the target")
    if not checkpoint:
        raise UsageError(
            "set option checkpointLocation on the query: the checkpoint says where batches begin "
            "and end"
        )
    if "deletionVectors" in options:
        raise UsageError("option deletionVectors: all tables use them; leave the option out")
    kafka = {
        name.removeprefix(KAFKA_PREFIX): text
        for name, text in options.items()
        if name.startswith(KAFKA_PREFIX)
    }
    policy = _policy(options)
    target = StateTarget(path.rstrip("/"), storage_of(options), policy, given_origin(options))
    return StateWriter(target, checkpoint, ClientConfig(kafka), options.get("registryUrl"))


def _policy(options: Mapping[str, str]) -> StateOptions:
    """Return the fields of a policy by the options that are named as they are, in camelCase."""
    found: dict[str, Any] = {}
    for name, kind in get_type_hints(StateOptions).items():
        first, *others = name.split("_")
        option = "".join([first, *map(str.capitalize, others)])
        if option in options:
            found[name] = _value(option, options[option], kind)
    return StateOptions(**found)


def _value(option: str, text: str, kind: Any) -> object:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if text not in [*kind]:
            raise UsageError(f"option {option} is {text!r}: {' or '.join(kind)}")
        return kind(text)
    if kind is bool:
        if text not in {"true", "false"}:
            raise UsageError(f"option {option} is {text!r}: true or false")
        return text == "true"
    if kind in {int, int | None}:
        if not text.isdecimal():
            raise UsageError(f"option {option} is {text!r}, not a number")
        return int(text)
    found = json.loads(text)
    return tuple(found) if isinstance(found, list) else found


def _check_token(options: StateOptions, columns: Sequence[str]) -> None:
    if options.history and "token" not in columns:
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
        return STATE_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> "StateWriter":
        """Return the writer of a query; UsageError on bad options or missing columns."""
        try:
            _check_rows(schema, overwrite=overwrite)
            writer = parse_options(self.sink_options())
            _check_token(writer.target.options, schema.names)
        except UsageError as error:
            raise UsageError(f"{self.name()}: {error}") from error
        writer.prepare()
        return writer

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
                f"set option table to one table, as database.table; {STATE_FORMAT} has options "
                f"tables and history for several"
            )
        options["tables"], options["history"] = json.dumps([table]), json.dumps({table: tracked})
        return options


@dataclass(frozen=True)
class StateWriter(DataSourceStreamArrowWriter):
    """Merges on executors and commits on the driver."""

    target: StateTarget
    checkpoint: str
    kafka: ClientConfig
    registry_url: str | None

    def prepare(self) -> None:
        """Begin new histories, and drop columns, before a query starts."""
        begin_histories(self.target)
        drop_columns(self.target, Frontiers(self.target.path, self.target.storage).newest())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWork:
        """Merge the rows of a task with those that are stored."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return TaskWork([])
        tables, decoder = _worker(self)
        query = query_id(self.checkpoint, self.target.storage)
        rows = pa.Table.from_batches(batches)
        return TaskWork(tables.work(rows, decoder, (query, batch_id()), task()))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit a batch, also one without rows: its frontier moves on."""
        target, checkpoint = self.target, self.checkpoint
        done = [message for message in messages if isinstance(message, TaskWork)]
        works = [work for each in done for work in each.works]
        commit_batch(target, works, planned_batch(checkpoint, batchId, target.storage))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: a commit may have succeeded without Spark's knowledge."""


_WORKERS: dict[str, tuple[TaskTables, TableDecoder]] = {}


def _worker(writer: StateWriter) -> tuple[TaskTables, TableDecoder]:
    target = writer.target
    found = _WORKERS.get(target.path)
    if found is None or found[0].target != target:
        origin = target.origin
        key_scope = KeyScope.KEYSPACE if origin is None else origin.key_scope
        decoder = TableDecoder(schema_ids_of(writer.kafka, writer.registry_url).text_of, key_scope)
        on_unlogged = (
            stop_at_unlogged if origin is None else UnloggedCopies(writer.kafka, origin.keyspace)
        )
        found = TaskTables(target, on_unlogged), decoder
        _WORKERS[target.path] = found
    return found


def state_frame(
    spark: SparkSession,
    keyspace: str,
    options: Mapping[str, str],
    tables: Sequence[str] = (),
    partitions: int = PARTITIONS_DEFAULT,
    *,
    token: bool = False,
) -> DataFrame:
    """Return the rows that format `shardstream_state` writes: all tables, divided by key.

    `options` are those of format `shardstream`. `tables`: `database.table`, none for all. `token`:
    with the column that a history needs.
    """
    frame = sink_frame(spark, keyspace, options, tables=tables, token=token)
    return routed(frame, partitions)


def run_state(
    spark: SparkSession,
    keyspace: str,
    target: str,
    checkpoint: str,
    options: Mapping[str, str],
    policy: StateOptions | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    **running: Unpack[Running],
) -> SinkProgress:
    """Keep the present rows of a keyspace's tables below `target`; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange, ...).
    `start` applies only to a new target: with a new checkpoint the query goes on where the target
    ends. The run ends as `running` says. Raises the ShardstreamError that ended the query, a
    transient one after RESTARTS_MAX restarts.
    """
    policy, storage = policy or StateOptions(), dict(storage_options or {})
    parsed = SourceOptions.parse({**options, "keyspace": keyspace})
    place = StateTarget(target.rstrip("/"), storage, policy, parsed.origin)
    frontiers = Frontiers(place.path, storage, parsed.origin)
    check_kept(place.path, frontiers.newest(), policy)
    begun = frontiers.state(), checkpoint_state(checkpoint, storage)
    source = resumed({"start": "earliest", **options}, place.path, *begun)
    rows = translated(
        lambda: state_frame(
            *(spark, keyspace, source, policy.tables, policy.partitions), token=bool(policy.history)
        )
    )
    writer = StateWriter(place, checkpoint, parsed.kafka, parsed.registry_url)

    def query() -> DataStreamWriter:
        writer.prepare()
        return query_of(rows, writer, checkpoint, f"state {keyspace}")

    watch = SameKeyWatch(place.path, policy.on_same_key)

    def applied() -> Applied:
        newest = frontiers.newest()
        if newest is None:
            watch.see(0, ())
            return Applied(0)
        watch.see(newest.frontier_us, newest.same_keys)
        return Applied(sum(newest.rows.values()), newest.frontier_us)

    return run_query(query, applied, running, watch.end)
