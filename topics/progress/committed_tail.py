"""Reads what is committed at the ends of a shard's topics."""

from dataclasses import dataclass

from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.kafka.stable_end import await_stable
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import Progress
from topics.records.envelope import read_envelope
from topics.records.schema_ids import SchemaIds


@dataclass(frozen=True, slots=True)
class LastRow:
    """The last committed record of a shard log."""

    offset: int
    seq: int
    timestamp_us: int


@dataclass(frozen=True, slots=True)
class LogTail:
    """What a shard log holds after fencing; `start_offset` is its log start offset."""

    start_offset: int
    last: LastRow | None


def last_progress(
    config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds
) -> Progress | None:
    """The last committed progress record of a shard; None where there is none."""
    last = read_tail(config, topics.progress).last
    if last is None:
        return None
    return decode_progress(last.value, schema_ids, f"{topics.progress}, offset {last.offset}")


def read_committed_tail(
    config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds
) -> tuple[Progress | None, LogTail]:
    """The last committed progress and the end of the log.

    Only after fencing: until then a predecessor may commit. Raises Retry while a topic has records
    that are neither committed nor aborted, and when brokers do not answer.
    """
    for topic in (topics.log, topics.progress):
        await_stable(config, topic)
    log = read_tail(config, topics.log)
    last = None
    if log.last is not None:
        _, seq, timestamp_us, _ = read_envelope(log.last.value or b"", topics.log, log.last.offset)
        last = LastRow(log.last.offset, seq, timestamp_us)
    return last_progress(config, topics, schema_ids), LogTail(log.start_offset, last)
