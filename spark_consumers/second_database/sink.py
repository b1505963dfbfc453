"""`writeStream.format("shardstream_database")`: what the query of `run_database` writes to.

Each task stages the changes of its keys in the target; the driver applies them in one transaction.
Option `secret.spec` is a `DatabaseSpec` as text. Spark hides options of such names, and this one
holds passwords.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from event_token.errors import UsageError
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.task_changes import Following, changes_of
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.second_database.staging import Staged
from spark_consumers.sink_query.batch_id import task
from spark_consumers.sink_query.checkpoint_files import batch_span, query_id
from spark_consumers.sink_query.resume import PlannedBatch
from spark_consumers.sink_query.secret_spec import SPEC, spec_of
from spark_consumers.sink_query.unlogged_copies import UnloggedCopies
from spark_consumers.source.read_tasks import schema_ids_of
from topics.kafka.client import ClientConfig

DATABASE_FORMAT = "shardstream_database"
# Decoders of all table versions that a worker process keeps, by cluster.
_CLUSTERS_MAX = 4


@dataclass(frozen=True, slots=True)
class DatabaseSpec:
    """A query that writes to a second database, as its tasks need it.

    `tables`: (database, table) of those that are followed, None: all. `accept_skip`: GTIDs of
    skipped transactions without which the tables are right.
    """

    url: str
    keyspace: str
    target: TargetOptions
    kafka: ClientConfig
    registry_url: str | None
    checkpoint: str
    partitions: int
    tables: frozenset[tuple[str, str]] | None = None
    accept_skip: frozenset[str] = frozenset()
    on_truncate: OnTruncate = OnTruncate.APPLY


@dataclass
class StagedTask(WriterCommitMessage):
    """What one task has staged, per table."""

    staged: list[Staged]


class DatabaseSink(DataSource):
    """The data source that `register` registers with Spark."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return DATABASE_FORMAT

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,  # noqa: ARG002 - Spark passes it by position
        overwrite: bool,
    ) -> "DatabaseWriter":
        """Return the writer of a query; UsageError on bad options."""
        if overwrite or SPEC not in self.options:
            raise UsageError(f"{DATABASE_FORMAT}: start the query by run_database")
        return DatabaseWriter(spec_of(self.options, DatabaseSpec, DATABASE_FORMAT))


class DatabaseWriter(DataSourceStreamArrowWriter):
    """Stages in the tasks and applies on the driver."""

    def __init__(self, spec: DatabaseSpec) -> None:
        """Keep what tasks and driver need."""
        self._spec = spec

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        """Stage what the rows of a task change."""
        batches = [batch for batch in iterator if batch.num_rows]
        if not batches:
            return StagedTask([])
        spec = self._spec
        database = SqlDatabase(spec.url, spec.target)
        following = Following(
            spec.tables,
            database.known(),
            spec.accept_skip,
            spec.target.on_type_change,
            spec.on_truncate,
            on_partial=spec.target.on_partial,
            drop_columns=spec.target.drop_columns,
            on_unlogged=UnloggedCopies(spec.kafka, spec.keyspace),
        )
        changes = changes_of(
            pa.Table.from_batches(batches),
            _decoder(spec.kafka, spec.registry_url, spec.target.key_scope),
            partitions=spec.partitions,
            task=task(),
            following=following,
        )
        return StagedTask(database.stage(changes))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply what the tasks have staged, and move the position, also without any rows."""
        spec = self._spec
        begin, end = batch_span(spec.checkpoint, batchId, {})
        batch = PlannedBatch(query_id(spec.checkpoint, {}), batchId, begin, end)
        staged = [
            each
            for message in messages
            if isinstance(message, StagedTask)
            for each in message.staged
        ]
        SqlDatabase(spec.url, spec.target).apply(batch, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave the staging tables to the next start: the commit may have succeeded."""


@lru_cache(maxsize=_CLUSTERS_MAX)
def _decoder(kafka: ClientConfig, registry_url: str | None, key_scope: KeyScope) -> RecordDecoder:
    """Return this process's decoder for a cluster."""
    return RecordDecoder(schema_ids_of(kafka, registry_url).text_of, key_scope)
