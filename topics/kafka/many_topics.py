"""Reads partition 0 of many topics at once: requests go out per broker, not per topic."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # public

from topics.kafka.client import ClientConfig
from topics.kafka.deadline import Deadline
from topics.kafka.errors import TOPIC_GONE, kafka_errors
from topics.kafka.partition_reader import (
    StoredRecord,
    is_last,
    next_message,
    offset_of,
    stored_record,
)
from topics.kafka.requests import retry_request

_EARLIEST: Final = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]


def bounds_of(
    admin: AdminClient, config: ClientConfig, topics: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Return the first offset and the last stable offset of each topic that exists.

    Retry when no broker answers in time.
    """

    def ask(timeout_s: float) -> dict[str, tuple[int, int]]:
        partitions = [TopicPartition(topic, 0) for topic in topics]
        first, last = (
            admin.list_offsets(
                dict.fromkeys(partitions, spec),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=timeout_s,
            )
            for spec in (_EARLIEST, _LATEST)
        )
        found = {}
        for partition in partitions:
            try:
                bounds = first[partition].result().offset, last[partition].result().offset
            except KafkaException as error:
                if error.args[0].name() not in TOPIC_GONE:
                    raise
            else:
                found[partition.topic] = bounds
        return found

    if not topics:
        return {}
    return retry_request(f"reading the offsets of {len(topics)} topics", config, ask)


def read_ranges(
    consumer: Consumer,
    config: ClientConfig,
    ranges: Mapping[str, tuple[int, int]],
    timeout_s: float,
) -> Iterator[tuple[str, StoredRecord]]:
    """Yield the committed records of each topic with lower <= offset < upper, in their order.

    The uppers must be stable. The consumer must report ends of partitions, and is left without an
    assignment. Retry when this takes longer than `timeout_s`.
    """
    left = {topic: upper for topic, (lower, upper) in ranges.items() if lower < upper}
    if not left:
        return
    doing = f"reading the ends of {len(left)} topics"
    deadline = Deadline(timeout_s)
    try:
        with kafka_errors(doing, config.brokers):
            consumer.assign([TopicPartition(topic, 0, ranges[topic][0]) for topic in left])
        while left:
            message = next_message(consumer, config, deadline, doing)
            topic = str(message.topic())
            upper = left.get(topic)
            if upper is None:  # it has been read, and is written to
                continue
            if message.error() is None and offset_of(message) < upper:
                yield topic, stored_record(message)
            if is_last(message, upper):
                del left[topic]
    finally:
        consumer.unassign()
