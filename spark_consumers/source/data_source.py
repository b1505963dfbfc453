"""`spark.read` and `spark.readStream` with format `shardstream`: the merged stream as rows.

A batch holds exactly the rows with frontier(previous) <= timestamp < frontier. Each task yields
rows of one shard in order; (timestamp_us, shard, offset) orders the batch. For the options see
`source.options`, for the columns `topics.arrow.output_columns`.

Worker processes outlive tasks and keep their consumers and decoders, so that reading the next range
of a shard needs no seek and no schema lookup.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from event_token import KeyRange, ShardName
from event_token.compiled import IS_COMPILED, PLAIN_WARNING
from event_token.errors import UsageError
from spark_consumers.source.micro_batches import (
    BatchPlanning,
    batch_bounds,
    batch_legs,
    batch_splits,
    stream_start,
)
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.stream_offset import Document, StreamOffset, TaskRange, tasks_between
from topics.arrow.decoders import ArrowDecoder
from topics.arrow.output_columns import OutputColumns, choose_columns, newest_version
from topics.errors import LogGap
from topics.kafka.client import ClientConfig
from topics.named_readers import ReaderKind, ReaderReporter
from topics.records.table_shape import SchemaIds
from topics.schemas import open_schema_ids
from topics.stream.log_reader import ShardLogReader

_LOG = logging.getLogger("shardstream.spark")

# Rows per Arrow batch. Python and the JVM exchange batches one at a time; above a few thousand rows
# the fixed cost per batch no longer matters, and more rows only take memory.
BATCH_ROWS = 8_192
# Bytes of records per Arrow batch. As JSON text they can take six times as much (escapes), in
# Python and in the JVM.
BATCH_BYTES_MAX = 16 * 1024 * 1024
# Consumers that a worker process keeps, each with up to 12 MiB of prefetched records.
READERS_MAX = 4


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where the logs are, and which part of them to read."""

    kafka: ClientConfig
    keyspace: str
    registry_url: str | None
    output: OutputColumns
    key_range: KeyRange

    @classmethod
    def of(cls, options: SourceOptions, output: OutputColumns) -> "LogSource":
        """Return what the options of a query name."""
        return cls(options.kafka, options.keyspace, options.registry_url, output, options.key_range)


@dataclass(frozen=True, slots=True)
class _ShardReading:
    reader: ShardLogReader
    decoder: ArrowDecoder


_SCHEMA_IDS: dict[tuple[ClientConfig, str | None], SchemaIds] = {}
_READINGS: "OrderedDict[tuple[LogSource, str], _ShardReading]" = OrderedDict()


def schema_ids_of(kafka: ClientConfig, registry_url: str | None) -> SchemaIds:
    """Return this process's schema cache for a cluster."""
    found = _SCHEMA_IDS.get((kafka, registry_url))
    if found is None:
        found = _SCHEMA_IDS[kafka, registry_url] = open_schema_ids(kafka, registry_url)
    return found


def read_task(source: LogSource, task: TaskRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order. Raises what ArrowDecoder and ShardLogReader do."""
    _warn_if_plain()
    shard = task.part.shard
    reading = _take_reading(source, shard)
    # Reader and decoder are kept only after a complete range: an error leaves them in mid-row.
    try:
        reading.decoder.begin(task.part.first_seq, task.late_before_us, task.seen)
        lists = reading.reader.read_many(task.part, BATCH_ROWS, BATCH_BYTES_MAX)
        for records, offsets in lists:
            batch = reading.decoder.decode(records, offsets)
            if batch.num_rows:
                yield batch
        _check_end(reading.decoder, task)
    except BaseException:
        reading.reader.close()
        raise
    _keep_reading(source, shard, reading)


@cache
def _warn_if_plain() -> None:
    if not IS_COMPILED:
        _LOG.warning(PLAIN_WARNING)


def _check_end(decoder: ArrowDecoder, task: TaskRange) -> None:
    if decoder.last_seq != task.part.last_seq:
        raise LogGap(
            f"shard {decoder.shard}: expected records up to seq {task.part.last_seq}, but the last "
            f"one read has seq {decoder.last_seq}"
        )


def _take_reading(source: LogSource, shard: str) -> _ShardReading:
    found = _READINGS.pop((source, shard), None)
    if found is not None:
        return found
    schema_ids = schema_ids_of(source.kafka, source.registry_url)
    return _ShardReading(
        ShardLogReader(source.kafka, source.keyspace, shard),
        ArrowDecoder(
            source.output, schema_ids.text_of, shard=shard, key_range=_part_of(source, shard)
        ),
    )


def _part_of(source: LogSource, shard: str) -> KeyRange | None:
    """Return the part of the shard to read, or None for the whole shard."""
    whole = source.key_range.includes(ShardName.parse(shard).key_range)
    return None if whole else source.key_range


def _keep_reading(source: LogSource, shard: str, reading: _ShardReading) -> None:
    _READINGS[source, shard] = reading
    while len(_READINGS) > READERS_MAX:
        _, oldest = _READINGS.popitem(last=False)
        oldest.reader.close()


SOURCE_FORMAT = "shardstream"


class ShardPartition(InputPartition):
    """The range that one task reads."""

    def __init__(self, task: TaskRange) -> None:
        super().__init__(task)
        self.task = task


class ShardstreamSource(DataSource):
    """The data source that `register` registers with Spark."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed = SourceOptions.parse(dict(options))
        self._output: OutputColumns | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return SOURCE_FORMAT

    def schema(self) -> StructType:
        """Return the columns; with option table those of its newest version now."""
        self._output = output_of(self._parsed)
        return spark_schema(self._output)

    def reader(self, schema: StructType) -> "ShardstreamReader":
        """Return the reader of a batch query."""
        if self._parsed.name is not None:
            raise UsageError("option name is for spark.readStream: a batch query has no position")
        return ShardstreamReader(self._parsed, self._log_source(schema))

    def streamReader(  # noqa: N802 - Spark's name
        self, schema: StructType
    ) -> "ShardstreamStreamReader":
        """Return the reader of a streaming query."""
        if self._parsed.end is not None:
            raise UsageError("option end is for spark.read; a stream ends by its trigger")
        return ShardstreamStreamReader(self._parsed, self._log_source(schema))

    def _log_source(self, schema: StructType) -> LogSource:
        if self._output is None:
            raise UsageError(
                f"format {SOURCE_FORMAT} has a fixed schema, but schema(...) was called with "
                f"{', '.join(schema.names)}: remove the call and use option columns"
            )
        return LogSource.of(self._parsed, self._output)


def output_of(options: SourceOptions) -> OutputColumns:
    """Return the columns that options ask for. UsageError on unknown ones, or no such table."""
    if options.table is None:
        output = choose_columns(options.columns)
    else:
        shape, schema_id = newest_version(
            options.kafka, options.registry_url, options.keyspace, *options.table
        )
        output = choose_columns(options.columns, shape, schema_id)
    return replace(output, key_scope=options.key_scope)


def spark_schema(output: OutputColumns) -> StructType:
    """Return the columns as Spark has them."""
    return from_arrow_schema(output.arrow_schema(), prefer_timestamp_ntz=True)


class ShardstreamReader(DataSourceReader):
    """Reads the range from option start to option end once."""

    def __init__(self, options: SourceOptions, source: LogSource) -> None:
        self._options = options
        self._source = source

    def partitions(self) -> Sequence[ShardPartition]:
        """Plan one task per shard; large ranges are split."""
        schema_ids = schema_ids_of(self._options.kafka, self._options.registry_url)
        start, end = batch_bounds(self._options, schema_ids)
        tasks: list[TaskRange] = []
        for leg_start, leg_end in batch_legs(self._options, schema_ids, start, end):
            splits = batch_splits(self._options, schema_ids, leg_start.position, leg_end)
            tasks += tasks_between(leg_start, StreamOffset(leg_end, splits))
        return [ShardPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._source, partition)


class ShardstreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches. Only `read` runs on executors."""

    def __init__(self, options: SourceOptions, source: LogSource) -> None:
        self._options = options
        self._source = source
        self._planning: BatchPlanning | None = None
        self._initial: StreamOffset | None = None
        self._ends_now = False
        self._reporter: ReaderReporter | None = None

    def _batches(self) -> BatchPlanning:
        if self._planning is None:
            schema_ids = schema_ids_of(self._options.kafka, self._options.registry_url)
            self._planning = BatchPlanning(self._options, schema_ids)
        return self._planning

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Return where option start lies; Spark asks until the first batch is committed."""
        schema_ids = schema_ids_of(self._options.kafka, self._options.registry_url)
        self._initial = stream_start(self._options, schema_ids)
        return self._initial.to_document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the maximum number of rows per batch."""
        return ReadMaxRows(self._options.max_rows_per_batch)

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: dict[str, object], limit: ReadLimit
    ) -> dict[str, object]:
        """Return the end of the next batch, or `start` itself while nothing can be read.

        The end of a first batch also holds its beginning.
        """
        self._report(start)
        begin = StreamOffset.from_document(start)
        planning = self._batches()
        # trigger(once=True) asks for everything: without an end the frontier would move on.
        ends_now = self._ends_now or isinstance(limit, ReadAllAvailable)
        if ends_now and not planning.has_end:
            planning.end_now(begin.position)
        end = planning.next_end(begin, self._rows_max(limit)) or begin
        if begin == self._initial:
            end = end.begun_at(begin)
        if end is begin and ends_now and self._reporter is not None:
            self._reporter.close()  # the query ends, and Spark kills this process
        return start if end is begin else end.to_document()

    def _rows_max(self, limit: ReadLimit) -> int | None:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if isinstance(limit, ReadAllAvailable):
            return None
        return self._options.max_rows_per_batch

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End at the progress that is on Kafka when the first batch is planned."""
        self._ends_now = True

    def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
        """Return each shard's head and the shards waited for, shown in the query's progress."""
        return None if self._planning is None else self._planning.status()

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[ShardPartition]:
        """Return the tasks of a batch, a pure function of its two offsets."""
        tasks = tasks_between(StreamOffset.from_document(start), StreamOffset.from_document(end))
        return [ShardPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return _read(self._source, partition)

    def _report(self, offset: Document) -> None:
        """Report a position under the query's name, if it has one.

        Spark asks for what follows an offset once the batch that ends there is in the checkpoint.
        It calls `commit` for that batch only after the next one is planned, and never for the last.
        """
        options = self._options
        if options.name is None:
            return
        if self._reporter is None:
            self._reporter = ReaderReporter(
                options.kafka,
                options.keyspace,
                options.name,
                options.key_range,
                ReaderKind.QUERY,
            )
        self._reporter.note(lambda: StreamOffset.from_document(offset).position)

    def stop(self) -> None:
        """Close the Kafka clients."""
        if self._reporter is not None:
            self._reporter.close()
        if self._planning is not None:
            self._planning.close()


def _read(source: LogSource, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, ShardPartition):
        raise TypeError(f"{partition!r} is not a partition of format {SOURCE_FORMAT}")
    return read_task(source, partition.task)
