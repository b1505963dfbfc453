"""Runs a task: fetches its range of one shard log, decodes it and yields Arrow batches.

Worker processes outlive tasks and keep their consumers and decoders, so that reading the next
range of a shard needs no seek and no schema lookup.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa

from event_token import KeyRange, ShardName
from event_token.compiled import IS_COMPILED, PLAIN_WARNING
from spark_consumers.decoding.output_columns import OutputColumns
from spark_consumers.decoding.shard_decoder import ShardDecoder
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.stream_offset import TaskRange
from topics.errors import LogGap
from topics.kafka.client import ClientConfig
from topics.records.schema_ids import SchemaIds
from topics.schemas.registry import open_schema_ids
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
    decoder: ShardDecoder


_SCHEMA_IDS: dict[tuple[ClientConfig, str | None], SchemaIds] = {}
_READINGS: "OrderedDict[tuple[LogSource, str], _ShardReading]" = OrderedDict()


def schema_ids_of(kafka: ClientConfig, registry_url: str | None) -> SchemaIds:
    """Return this process's schema cache for a cluster."""
    found = _SCHEMA_IDS.get((kafka, registry_url))
    if found is None:
        found = _SCHEMA_IDS[kafka, registry_url] = open_schema_ids(kafka, registry_url)
    return found


def read_task(source: LogSource, task: TaskRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order. Raises what ShardDecoder and ShardLogReader do."""
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
    """Log once per worker process that the readers are not compiled."""
    if not IS_COMPILED:
        _LOG.warning(PLAIN_WARNING)


def _check_end(decoder: ShardDecoder, task: TaskRange) -> None:
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
        ShardDecoder(shard, source.output, schema_ids.text_of, _part_of(source, shard)),
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
