"""Runs table topics: a streaming query from the merged stream into one topic per table."""

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from event_token.errors import UsageError
from spark_consumers.sink_query.frame import routed, sink_frame
from spark_consumers.sink_query.run import SinkProgress, Trigger, run_query, triggered
from spark_consumers.sink_query.secret_spec import SPEC, spec_text
from spark_consumers.sink_query.spark_errors import translated
from spark_consumers.source.options import SourceOptions
from spark_consumers.table_topics.chosen_tables import tables_with_records
from spark_consumers.table_topics.claim import Claim, claim_topics
from spark_consumers.table_topics.marker import Owner
from spark_consumers.table_topics.options import OnTruncate, TopicOptions
from spark_consumers.table_topics.positions import WrittenSoFar
from spark_consumers.table_topics.sink import TOPICS_FORMAT, TableTopicsSink, TopicsSpec
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import read_topology

# Time between batches. Each costs its tasks a transaction, of some 50 ms.
INTERVAL_S = 1.0


def run_table_topics(
    spark: SparkSession,
    checkpoint: str,
    options: Mapping[str, str],
    topics: TopicOptions,
    *,
    tables: Sequence[str] = (),
    accept_skip: Collection[str] = (),
    trigger: Trigger = "processingTime",
    interval_s: float = INTERVAL_S,
    on_progress: Callable[[SinkProgress], None] | None = None,
    stop: threading.Event | None = None,
) -> SinkProgress:
    """Write every change of a keyspace to the topics of its tables once; return the final progress.

    `options` are those of format `shardstream` (kafka.bootstrap.servers, start, keyRange,
    maxRowsPerBatch, ...); `start` applies only while nothing is written: otherwise the query goes
    on from its checkpoint, or, without one, where the topics end. `tables` (`database.table`): only
    these. `accept_skip`: GTIDs of statements that changed no value. With `availableNow` the run
    ends once everything that was on Kafka is written, else when `stop` is set. Rows of the progress
    are records in the topics.

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
        tables=tuple(sorted(tables)),
    )
    claim = claim_topics(kafka, keyspace, prefix, owner)
    if claim.position is not None:
        source["start"] = claim.position.to_string()
    spec = TopicsSpec(
        *(kafka, parsed.registry_url, topics, claim.owner, checkpoint),
        tables=tuple(tables),
        vindexes=_vindexes(kafka, keyspace),
        has_records=_with_records(kafka, topics, claim),
        accept_skip=frozenset(accept_skip),
    )
    source.pop("keyspace")
    writer = translated(lambda: _writer(spark, spec, source, tables))
    written = WrittenSoFar(kafka, topics)
    written.look()
    found = run_query(triggered(writer, trigger, interval_s).start, written, on_progress, stop)
    last = written.look()
    if trigger == "availableNow" and not (stop and stop.is_set()):
        written.check_end()
    return replace(found, rows=last.rows, frontier_us=last.frontier_us)


def _writer(
    spark: SparkSession, spec: TopicsSpec, source: Mapping[str, str], tables: Sequence[str]
) -> DataStreamWriter:
    envelope = spec.options.envelope
    spark.dataSource.register(TableTopicsSink)
    frame = sink_frame(
        spark, envelope.keyspace, source, tables=tables, token=False, more=("offset",)
    )
    return (
        routed(frame, spec.options.tasks)
        .writeStream.format(TOPICS_FORMAT)
        .option(SPEC, spec_text(spec))
        .option("checkpointLocation", spec.checkpoint)
        .queryName(f"table topics {envelope.prefix}")
    )


def _with_records(config: ClientConfig, topics: TopicOptions, claim: Claim) -> tuple[str, ...]:
    if claim.position is not None or topics.on_truncate is OnTruncate.KEEP:
        return ()  # nobody asks
    return tables_with_records(config, topics.envelope.prefix)


def _own_name() -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"the query started at {now} on {socket.gethostname()}, process {os.getpid()}"


def _vindexes(config: ClientConfig, keyspace: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    topology = read_topology(config, keyspace)
    if topology is None:
        raise UsageError(f"keyspace {keyspace} has no topology: start its producers first")
    return tuple((f"{v.database}.{v.table}", v.columns) for v in topology.vindexes)
