"""Table topics: a streaming query from the merged stream into one topic per table."""

import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from event_token.errors import Halt, UsageError
from sinks.rule.policy import OnSameKey
from sinks.rule.statements import TableName
from sinks.table_topics.batch_writer import (
    BatchPlan,
    Output,
    TaskIdentity,
    write_batch,
)
from sinks.table_topics.claim import TopicsClaim, claim_topics, tables_with_records
from sinks.table_topics.envelope.table_encoder import TableEncoder
from sinks.table_topics.moves import RecentHomes, RecordPlace
from sinks.table_topics.options import OnTruncateTopic, TopicOptions
from sinks.table_topics.positions import Owner, WrittenSoFar
from sinks.table_topics.registration import SubjectIds
from sinks.table_topics.task_rows import TableMessages, check_truncates, is_among, unlogged_of
from sinks.unlogged_copies import UnloggedCopies
from spark_consumers.sink_query import (
    Running,
    SinkProgress,
    batch_id,
    planned_batch,
    query_of,
    routed,
    run_query,
    sink_frame,
    task,
)
from spark_consumers.source.data_source import schema_ids_of
from spark_consumers.source.options import SourceOptions
from topics.errors import WrongTopic
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.kafka.provisioning import provision_table_topics
from topics.keyspace.topology import read_topology, require_topology
from topics.names import ShardTopics, table_topic
from topics.records.skip_record import is_accepted
from topics.records.table_shape import TableShape

# Versions of all tables that a worker process has encoders for, by query.
_QUERIES_MAX = 4


@dataclass(frozen=True)
class TopicsWriter(DataSourceStreamArrowWriter):
    """Writes in the tasks, each in a transaction of its own; the driver commits nothing.

    `vindexes`: pairs of a table and the columns that its vindex takes. `has_records`: with
    `--on-truncate stop`, tables whose topics had some before the first batch.
    """

    kafka: ClientConfig
    registry_url: str | None
    options: TopicOptions
    owner: Owner
    checkpoint: str
    vindexes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_records: tuple[str, ...] = ()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows in one transaction, unless its topics have them."""
        batches = list(iterator)
        batch = planned_batch(self.checkpoint, batch_id(), {})
        envelope = self.options.envelope
        identity = TaskIdentity(self.kafka, envelope.keyspace, envelope.prefix, task(), self.owner)

        def output_of(plan: BatchPlan, moves: tuple[object, ...]) -> Output:
            return _output(self, identity, plan, moves, batches)

        write_batch(identity, batch, output_of)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: each task has committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what tasks have committed is dropped when the batch runs again."""


def _output(
    query: TopicsWriter,
    identity: TaskIdentity,
    plan: BatchPlan,
    moves: tuple[object, ...],
    batches: list[pa.RecordBatch],
) -> Output:
    homes = RecentHomes(moves)

    def moves_after() -> tuple[object, ...]:
        stops = query.options.on_same_key is OnSameKey.STOP
        begin_us = plan.end.frontier_us - query.options.move_window_us
        homes.forget_before(begin_us, but_same_keys=stops)
        homes.check_number(query.options.moves_max, identity.transactional_id)
        return homes.to_json()

    if not batches:
        return Output((), moves_after)
    rows = _not_written(pa.Table.from_batches(batches), plan)
    # While the first batch is written, other tasks of it create topics.
    is_first = not plan.written

    def has_topic(what: TableName) -> bool:
        return is_among(what, query.has_records) if is_first else _has_topic(query, what)

    if query.options.on_truncate is OnTruncateTopic.STOP:
        check_truncates(rows, query.options.tables, has_topic)
    unlogged = unlogged_of(rows, query.options.tables, has_topic)
    unlogged = [u for u in unlogged if not is_accepted(query.options.accept_skip, str(u.gtid), "")]
    if unlogged:
        UnloggedCopies(query.kafka, query.options.envelope.keyspace)(unlogged)
    return Output(_table_messages(query).messages(rows, homes), moves_after)


def _not_written(rows: pa.Table, plan: BatchPlan) -> pa.Table:
    """Leave out what the topics have already."""
    shards = rows["shard"].combine_chunks().dictionary_encode()
    names = shards.dictionary.to_pylist()
    unknown = sorted(set(names) - plan.written.keys()) if plan.written else []
    if unknown:
        raise Halt(f"the batch has rows of {', '.join(unknown)}, which its positions do not name")
    written = pa.array([plan.written.get(name, -1) for name in names], pa.int64())
    return rows.filter(pc.greater(rows["seq"], written.take(shards.indices)))


def ensure_topic(config: ClientConfig, topic: str, partitions: int, keep_ms: int | None) -> None:
    """Create a table's topic, or check it.

    UsageError if it has other settings: in one line, which is what Spark's tasks hand on.
    """
    try:
        provision_table_topics(config, [topic], partitions, keep_ms)
    except WrongTopic as error:
        raise UsageError(f"wrong topic: {'; '.join(error.problems)}") from error


def _has_topic(query: TopicsWriter, what: TableName) -> bool:
    """Tell whether a table, or any of a database, has a topic."""
    begin = f"{query.options.envelope.prefix}."
    with kafka_errors("listing topics", query.kafka.brokers):
        names = open_admin(query.kafka).list_topics(timeout=TAIL_TIMEOUT_S).topics
    tables = [name.removeprefix(begin) for name in names if name.startswith(begin)]
    return is_among(what, tables)


@lru_cache(maxsize=_QUERIES_MAX)
def _table_messages(query: TopicsWriter) -> TableMessages:
    options = query.options
    ids = None if options.registry_url is None else SubjectIds(options.registry_url)

    def open_encoder(shape: TableShape) -> TableEncoder:
        table_topic(options.envelope.prefix, shape.database, shape.table)  # checks the name
        register = None if ids is None else ids.register
        return TableEncoder(shape, options.envelope, register, query.owner.key_scope)

    def ensure(topic: str) -> None:
        ensure_topic(query.kafka, topic, options.partitions, options.keep_ms)

    def fetch(place: RecordPlace) -> bytes:
        return _record_at(query.kafka, options.envelope.keyspace, place)

    return TableMessages(
        schema_ids_of(query.kafka, query.registry_url).text_of,
        dict(query.vindexes),
        open_encoder=open_encoder,
        ensure_topic=ensure,
        fetch=fetch,
        key_scope=query.owner.key_scope,
    )


def _record_at(config: ClientConfig, keyspace: str, place: RecordPlace) -> bytes:
    """Return a record of a shard log. Halt when it is gone."""
    log = ShardTopics(keyspace, place.shard).log
    with PartitionReader(config, log, 0, TAIL_TIMEOUT_S) as reader:
        for record in reader.records(place.offset, place.offset + 1):
            if record.offset == place.offset and record.value is not None:
                return record.value
    raise Halt(
        f"{log}, offset {place.offset}: the record of a row that is current again is gone: the "
        f"retention of shard logs must be longer than --move-window"
    )


def run_table_topics(
    spark: SparkSession,
    checkpoint: str,
    options: Mapping[str, str],
    topics: TopicOptions,
    **running: Unpack[Running],
) -> SinkProgress:
    """Write every change of a keyspace to the topics of its tables once; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange,
    maxRowsPerBatch, ...); `start` applies only while nothing is written: otherwise the query goes
    on from its checkpoint, or, without one, where the topics end. The run ends as `running` says.
    Rows of the progress are records in the topics.

    An earlier run that still writes to these topics is stopped. Raises the ShardstreamError that
    ended the query; a transient one only after several restarts.
    """
    keyspace, prefix = topics.envelope.keyspace, topics.envelope.prefix
    source = {"start": "earliest", **options, "keyspace": keyspace}
    parsed = SourceOptions.parse(source)
    kafka, topics = parsed.kafka, topics.with_registry(parsed.registry_url)
    owner = Owner(
        *(0, _own_name(), topics.tasks, topics.partitions, parsed.key_scope),
        key_range=str(parsed.key_range),
        tables=tuple(sorted(topics.tables)),
    )
    claim = claim_topics(kafka, keyspace, prefix, owner)
    if claim.position is not None:
        source["start"] = claim.position.to_string()
    writer = TopicsWriter(
        *(kafka, parsed.registry_url, topics, claim.owner, checkpoint),
        vindexes=_vindexes(kafka, keyspace),
        has_records=_with_records(kafka, topics, claim),
    )
    source.pop("keyspace")
    frame = sink_frame(spark, keyspace, source, tables=topics.tables, token=False, more=("offset",))
    query = query_of(routed(frame, topics.tasks), writer, checkpoint, f"table topics {prefix}")
    written = WrittenSoFar(kafka, topics)
    found = run_query(lambda: query, written.applied, running, written.check_end)
    last = written.look()
    return replace(found, rows=last.rows, frontier_us=last.frontier_us)


def _with_records(
    config: ClientConfig, topics: TopicOptions, claim: TopicsClaim
) -> tuple[str, ...]:
    if claim.position is not None or topics.on_truncate is OnTruncateTopic.KEEP:
        return ()  # nobody asks
    return tables_with_records(config, topics.envelope.prefix)


def _own_name() -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"the query started at {now} on {socket.gethostname()}, process {os.getpid()}"


def _vindexes(config: ClientConfig, keyspace: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    topology = require_topology(read_topology(config, keyspace), keyspace)
    return tuple((f"{v.database}.{v.table}", v.columns) for v in topology.vindexes)
