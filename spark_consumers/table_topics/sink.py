"""`writeStream.format("shardstream_table_topics")`: what the query of `run` writes to.

All work is done in the tasks, each in a transaction of its own; the driver commits nothing. Option
`secret.spec` is a `TopicsSpec` as text, which `run_table_topics` makes. Spark hides options of such
names, and this one holds the passwords of Kafka.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from event_token.errors import Halt, UsageError
from spark_consumers.applying.statements import TableName
from spark_consumers.sink_query.batch_id import batch_id, task
from spark_consumers.sink_query.checkpoint_files import batch_span, query_id
from spark_consumers.sink_query.same_keys import OnSameKey
from spark_consumers.sink_query.secret_spec import SPEC, spec_of
from spark_consumers.sink_query.unlogged_copies import UnloggedCopies
from spark_consumers.source.read_tasks import schema_ids_of
from spark_consumers.table_topics.batch_writer import Output, TaskBatch, TaskIdentity, write_batch
from spark_consumers.table_topics.decision import Plan, Span
from spark_consumers.table_topics.envelope.table_encoder import TableEncoder
from spark_consumers.table_topics.marker import Owner
from spark_consumers.table_topics.moves import Place, RecentHomes
from spark_consumers.table_topics.options import OnTruncate, TopicOptions
from spark_consumers.table_topics.registration import SubjectIds
from spark_consumers.table_topics.task_rows import TableMessages
from spark_consumers.table_topics.truncates import check_truncates, is_among, unlogged_of
from topics.errors import WrongTopic
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.kafka.provisioning import provision_table_topics
from topics.names import ShardTopics, table_topic
from topics.records.accepted_skips import is_accepted
from topics.records.table_shape import TableShape

TOPICS_FORMAT = "shardstream_table_topics"
# Versions of all tables that a worker process has encoders for, by query.
_QUERIES_MAX = 4


@dataclass(frozen=True, slots=True)
class TopicsSpec:
    """A query that writes table topics, as its tasks need it.

    `tables` (`database.table`): those that are written, empty for all. `vindexes`: pairs of a table
    and the columns that its vindex takes. `has_records`: with `--on-truncate stop`, tables whose
    topics had some before the first batch. `accept_skip`: GTIDs of statements that changed no
    value.
    """

    kafka: ClientConfig
    registry_url: str | None
    options: TopicOptions
    owner: Owner
    checkpoint: str
    tables: tuple[str, ...] = ()
    vindexes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_records: tuple[str, ...] = ()
    accept_skip: frozenset[str] = frozenset()


class TableTopicsSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return TOPICS_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,  # noqa: ARG002 - Spark passes it by position
        overwrite: bool,
    ) -> "TableTopicsWriter":
        """Return the writer of a query; UsageError on bad options."""
        if overwrite or SPEC not in self.options:
            raise UsageError(f"{TOPICS_FORMAT}: start the query by run_table_topics")
        return TableTopicsWriter(spec_of(self.options, TopicsSpec, TOPICS_FORMAT))


class TableTopicsWriter(DataSourceStreamArrowWriter):
    """Writes in the tasks."""

    def __init__(self, spec: TopicsSpec) -> None:
        """Keep what the tasks need."""
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write a task's rows in one transaction, unless its topics have them."""
        spec = self._spec
        batches = list(iterator)
        number = batch_id()
        start, end = batch_span(spec.checkpoint, number, {})
        span = Span(start, end, is_first=number == 0)
        batch = TaskBatch(query_id(spec.checkpoint, {}), number, span)
        envelope = spec.options.envelope
        identity = TaskIdentity(spec.kafka, envelope.keyspace, envelope.prefix, task(), spec.owner)

        def output_of(plan: Plan, moves: tuple[object, ...]) -> Output:
            return _output(spec, identity, plan, moves, batches)

        write_batch(identity, batch, output_of)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: each task has committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: what tasks have committed is dropped when the batch runs again."""


def _output(
    spec: TopicsSpec,
    identity: TaskIdentity,
    plan: Plan,
    moves: tuple[object, ...],
    batches: list[pa.RecordBatch],
) -> Output:
    homes = RecentHomes(moves)

    def moves_after() -> tuple[object, ...]:
        stops = spec.options.on_same_key is OnSameKey.STOP
        begin_us = plan.end.frontier_us - spec.options.move_window_us
        homes.forget_before(begin_us, but_same_keys=stops)
        homes.check_number(spec.options.moves_max, identity.transactional_id)
        return homes.to_json()

    if not batches:
        return Output((), moves_after)
    rows = _not_written(pa.Table.from_batches(batches), plan)
    # While the first batch is written, other tasks of it create topics.
    is_first = not plan.written

    def has_topic(what: TableName) -> bool:
        return is_among(what, spec.has_records) if is_first else _has_topic(spec, what)

    if spec.options.on_truncate is OnTruncate.STOP:
        check_truncates(rows, spec.tables, has_topic)
    unlogged = unlogged_of(rows, spec.tables, has_topic)
    unlogged = [u for u in unlogged if not is_accepted(spec.accept_skip, str(u.gtid), "")]
    if unlogged:
        UnloggedCopies(spec.kafka, spec.options.envelope.keyspace)(unlogged)
    return Output(_table_messages(spec).messages(rows, homes), moves_after)


def _not_written(rows: pa.Table, plan: Plan) -> pa.Table:
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


def _has_topic(spec: TopicsSpec, what: TableName) -> bool:
    """Tell whether a table, or any of a database, has a topic."""
    begin = f"{spec.options.envelope.prefix}."
    with kafka_errors("listing topics", spec.kafka.brokers):
        names = open_admin(spec.kafka).list_topics(timeout=TAIL_TIMEOUT_S).topics
    tables = [name.removeprefix(begin) for name in names if name.startswith(begin)]
    return is_among(what, tables)


@lru_cache(maxsize=_QUERIES_MAX)
def _table_messages(spec: TopicsSpec) -> TableMessages:
    """Return this process's encoders for a query."""
    options = spec.options
    ids = None if options.registry_url is None else SubjectIds(options.registry_url)

    def open_encoder(shape: TableShape) -> TableEncoder:
        table_topic(options.envelope.prefix, shape.database, shape.table)  # checks the name
        return TableEncoder(shape, options.envelope, None if ids is None else ids.register)

    def ensure(topic: str) -> None:
        ensure_topic(spec.kafka, topic, options.partitions, options.keep_ms)

    def fetch(place: Place) -> bytes:
        return _record_at(spec.kafka, options.envelope.keyspace, place)

    return TableMessages(
        schema_ids_of(spec.kafka, spec.registry_url).text_of,
        dict(spec.vindexes),
        open_encoder=open_encoder,
        ensure_topic=ensure,
        fetch=fetch,
        key_scope=spec.owner.key_scope,
    )


def _record_at(config: ClientConfig, keyspace: str, place: Place) -> bytes:
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
