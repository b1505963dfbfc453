"""Reads what is committed on a shard's topics, after fencing."""

import time
from dataclasses import dataclass
from typing import Final

from event_token.errors import Retry
from topics.kafka.client import ClientConfig, open_consumer
from topics.kafka.partition_reader import partition_bounds, read_tail
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import Progress
from topics.records.envelope import read_envelope
from topics.records.schema_ids import SchemaIds

# Markers of the predecessor's last transaction may still be on their way to a leader.
STABLE_S_MAX: Final = 30.0
STABLE_POLL_S: Final = 0.1


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
    last_progress = read_tail(config, topics.progress).last
    last = None
    if log.last is not None:
        _, seq, timestamp_us, _ = read_envelope(log.last.value or b"", topics.log, log.last.offset)
        last = LastRow(log.last.offset, seq, timestamp_us)
    progress = None
    if last_progress is not None:
        where = f"{topics.progress}, offset {last_progress.offset}"
        progress = decode_progress(last_progress.value, schema_ids, where)
    return progress, LogTail(log.start_offset, last)


def await_stable(config: ClientConfig, topic: str, seconds: float = STABLE_S_MAX) -> None:
    """Wait until all records of a topic are committed or aborted; Retry when that takes longer.

    An open transaction hides what was committed after it began, and a producer that resumed from
    there would write those records again.
    """
    committed = open_consumer(config)
    everything = open_consumer(config, read_committed=False)
    deadline_s = time.monotonic() + seconds
    try:
        while True:
            # In this order, so that no record that comes in between makes them equal by mistake.
            _, end = partition_bounds(everything, config, topic)
            _, stable = partition_bounds(committed, config, topic)
            if stable >= end:
                return
            if time.monotonic() > deadline_s:
                raise Retry(
                    f"{topic}: offsets {stable} to {end} belong to an open transaction, but the "
                    f"shard's producers are fenced: find its producer (kafka-transactions.sh "
                    f"find-hanging --topic {topic}) and abort it"
                )
            time.sleep(STABLE_POLL_S)
    finally:
        committed.close()
        everything.close()
