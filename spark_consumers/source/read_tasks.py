"""What a task does: fetch its range of one shard log, decode it, yield Arrow batches.

Worker processes live longer than tasks; they keep consumers and decoders, so that the next range
of a shard goes on without a seek and without reading schemas again.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from event_token import KeyRange, ShardName
from spark_consumers.decoding.output_columns import OutputColumns
from spark_consumers.decoding.shard_decoder import ShardDecoder
from spark_consumers.errors import BrokenLog
from spark_consumers.source.stream_offset import TaskRange
from topics.kafka.client import ClientConfig
from topics.schemas.ids import SchemaIds
from topics.schemas.registry import open_schema_ids
from topics.stream.log_reader import ShardLogReader

# Rows of an Arrow batch. Python and the JVM hand batches over one at a time; from some thousand
# rows on their fixed cost no longer counts, and more rows would only take memory.
BATCH_ROWS = 8_192
# Bytes of records in an Arrow batch: JSON text can be six times as long (escapes), and all of it
# is in memory in Python and in the JVM.
BATCH_BYTES_MAX = 16 * 1024 * 1024
# Consumers that a worker process keeps, each with up to 12 MiB fetched ahead.
READERS_MAX = 4


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where the logs lie and what is wanted of them."""

    kafka: ClientConfig
    keyspace: str
    registry_url: str | None
    output: OutputColumns
    key_range: KeyRange


@dataclass(frozen=True, slots=True)
class _ShardReading:
    reader: ShardLogReader
    decoder: ShardDecoder


_SCHEMA_IDS: dict[tuple[ClientConfig, str | None], SchemaIds] = {}
_READINGS: "OrderedDict[tuple[LogSource, str], _ShardReading]" = OrderedDict()


def schema_ids_of(kafka: ClientConfig, registry_url: str | None) -> SchemaIds:
    """Return this process's schema ids of a cluster."""
    found = _SCHEMA_IDS.get((kafka, registry_url))
    if found is None:
        found = _SCHEMA_IDS[kafka, registry_url] = open_schema_ids(kafka, registry_url)
    return found


def read_task(source: LogSource, task: TaskRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in order. BrokenLog and the errors of ShardLogReader."""
    shard = task.part.shard
    reading = _take_reading(source, shard)
    # An error or a reader that leaves early makes both unfit; only a whole range puts them back.
    try:
        reading.decoder.begin(task.part.first_seq, task.late_before_us, task.seen)
        for records, offsets in _lists(reading.reader, task):
            batch = reading.decoder.decode(records, offsets)
            if batch.num_rows:
                yield batch
        _check_end(reading.decoder, task)
    except BaseException:
        reading.reader.close()
        raise
    _keep_reading(source, shard, reading)


def _check_end(decoder: ShardDecoder, task: TaskRange) -> None:
    if decoder.last_seq != task.part.last_seq:
        raise BrokenLog(
            f"shard {decoder.shard}: the range ends at seq {task.part.last_seq}, but reading ended "
            f"at seq {decoder.last_seq}"
        )


def _lists(reader: ShardLogReader, task: TaskRange) -> Iterator[tuple[list[bytes], list[int]]]:
    """Yield the range's records in lists that fit an Arrow batch."""
    for messages in reader.read_many(task.part, BATCH_ROWS):
        records = [message.value() or b"" for message in messages]
        offsets = [message.offset() or 0 for message in messages]
        begin = size = 0
        for end, record in enumerate(records):
            if size + len(record) > BATCH_BYTES_MAX and end > begin:
                yield records[begin:end], offsets[begin:end]
                begin, size = end, 0
            size += len(record)
        yield records[begin:], offsets[begin:]


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
    """The part of a shard that is wanted; None for all of it."""
    whole = source.key_range.includes(ShardName.parse(shard).key_range)
    return None if whole else source.key_range


def _keep_reading(source: LogSource, shard: str, reading: _ShardReading) -> None:
    _READINGS[source, shard] = reading
    while len(_READINGS) > READERS_MAX:
        _, oldest = _READINGS.popitem(last=False)
        oldest.reader.close()
