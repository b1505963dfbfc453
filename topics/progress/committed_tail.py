"""Reads what is committed at the ends of a shard's topics."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer

from event_token import GtidSet, parse_gtid_set
from event_token.errors import Retry
from topics.kafka.client import ClientConfig, Deadline, open_consumer
from topics.kafka.partition_reader import (
    TAIL_TIMEOUT_S,
    PartitionReader,
    await_stable,
    both_consumers,
    open_range,
    read_tail,
)
from topics.kafka.record_parts import part_of
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import Progress
from topics.records.envelope import read_envelope
from topics.records.envelope_table import EVENT_TYPES
from topics.records.table_shape import SchemaIds
from topics.records.vevent import EventType

# After fencing every marker has been written; only a new leader may not show it at once.
MARKERS_S_MAX: Final = 3.0

# A copy writes one of these to the log in each transaction that stores how far it has come.
_OF_COPIES: Final = frozenset(
    EVENT_TYPES.index(each.value) for each in (EventType.LAST_PK, EventType.COPY_COMPLETED)
)

_LOG: Final = logging.getLogger("shardstream.kafka")


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

    def agrees_with(self, progress: Progress | None) -> bool:
        """Return whether the log ends with the record that the progress names.

        A log emptied by retention agrees if it starts at or after the progress's end offset.
        """
        if progress is None:
            return self.last is None
        if self.last is None:
            return progress.last_seq == 0 or self.start_offset >= progress.end_offset
        named = (progress.last_seq, progress.end_offset - 1)
        return (self.last.seq, self.last.offset) == named


def last_progress(
    config: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    consumer: Consumer | None = None,
) -> Progress | None:
    """The last committed progress record of a shard; None where there is none.

    `consumer`: to read with, which stays open.
    """
    last = read_tail(config, topics.progress, consumer=consumer).last
    if last is None:
        return None
    where = f"{topics.progress}, offset {last.offset}"
    return decode_progress(last.value, schema_ids, where, last.headers)


def read_committed_tail(
    config: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    abort_open: Callable[[], None],
) -> tuple[Progress | None, LogTail]:
    """The last committed progress and the end of the log.

    Only after fencing: until then a predecessor may commit. `abort_open` aborts a transaction of
    the shard's transactional id that has a record in each of its topics. Raises Retry while a topic
    has records that are neither committed nor aborted, and when brokers do not answer; and what
    `abort_open` raises where a successor has fenced the caller.
    """
    both = (topics.log, topics.progress)
    with both_consumers(config) as consumers:
        opened = [open_range(config, topic, MARKERS_S_MAX, consumers=consumers) for topic in both]
        if any(opened):
            _end_lost_commit(config, topics, schema_ids, opened[0], abort_open)
            for topic in both:
                await_stable(config, topic)
        progress, log = _committed_tail(config, topics, schema_ids, consumers[0])
    if not log.agrees_with(progress):
        # A successor may have committed between the two looks. Then this is refused.
        abort_open()
    return progress, log


def _end_lost_commit(
    config: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    log_range: tuple[int, int] | None,
    abort_open: Callable[[], None],
) -> None:
    """Abort a transaction that the brokers completed without writing its markers.

    They do so while its partitions have no leader. A later marker of the same producer id ends
    the transaction too. Aborting is right only if no topic has the transaction's marker.
    """
    progress, log = _committed_tail(config, topics, schema_ids)
    if not log.agrees_with(progress) or _copy_is_ahead(config, topics, log_range):
        raise Retry(
            f"a transaction is committed in some of {topics.log}, {topics.progress} and "
            f"{topics.copy}, and open in the others: the brokers lost a commit marker, and no tool "
            "can write it again. Do not abort the transaction while readers are behind it; if this "
            f"does not pass, run shardstream topics reset {topics.keyspace} {topics.shard}, and "
            "start a new log with a copy"
        )
    abort_open()
    _LOG.warning(
        "%s: aborted a transaction that the brokers had left open; its rows are written again",
        topics.log,
    )


def _copy_is_ahead(
    config: ClientConfig, topics: ShardTopics, log_range: tuple[int, int] | None
) -> bool:
    """Return whether rows of a copy are open in the log, and committed in the copy topic."""
    if log_range is None or open_range(config, topics.copy, 0) is not None:
        return False
    everything = open_consumer(config, read_committed=False)
    try:
        with PartitionReader(config, topics.log, 0, TAIL_TIMEOUT_S, everything) as reader:
            # Those records are never in parts, and of others some parts may not be there.
            return any(
                read_envelope(record.value or b"", topics.log, record.offset)[0] in _OF_COPIES
                for record in reader.messages(*log_range)
                if part_of(record.headers, topics.log) is None
            )
    finally:
        everything.close()


def _committed_tail(
    config: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    consumer: Consumer | None = None,
) -> tuple[Progress | None, LogTail]:
    log = read_tail(config, topics.log, consumer=consumer)
    last = None
    if log.last is not None:
        _, seq, timestamp_us, _ = read_envelope(log.last.value or b"", topics.log, log.last.offset)
        last = LastRow(log.last.offset, seq, timestamp_us)
    progress = last_progress(config, topics, schema_ids, consumer)
    return progress, LogTail(log.start_offset, last)


# A log follows its server within a second, more where its producer has to catch up.
LOG_WAIT_S: Final = 120.0
_POLL_S: Final = 0.1


def has_reached(progress: Progress | None, executed: GtidSet) -> bool:
    """Whether a log holds everything that its server had executed."""
    if progress is None:
        return False
    return parse_gtid_set(progress.position, executed.flavor).includes(executed)


def wait_until_logged(
    kafka: ClientConfig,
    topics: ShardTopics,
    schema_ids: SchemaIds,
    executed: GtidSet,
    wait_s: float = LOG_WAIT_S,
) -> Progress:
    """Return the progress of a log once it holds `executed`. Retry if it does not in time."""
    deadline = Deadline(wait_s)
    while True:
        progress = last_progress(kafka, topics, schema_ids)
        if progress is not None and has_reached(progress, executed):
            return progress
        if deadline.passed:
            raise Retry(
                f"shard {topics.shard}: its log has not reached {executed} within {wait_s:g} s: "
                f"is its producer running?"
            )
        time.sleep(_POLL_S)
