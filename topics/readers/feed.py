"""Reads what the named readers of a keyspace have reported, and forgets those that are gone."""

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException

from event_token.errors import Retry, UsageError
from topics.kafka.client import REQUEST_TIMEOUT_S, ClientConfig, open_producer
from topics.kafka.errors import TopicMissing, kafka_error, kafka_errors
from topics.kafka.partition_reader import PartitionReader
from topics.names import ApplierName, check_reader_name, readers_topic
from topics.readers.group_offsets import delete_group
from topics.readers.record import LastReports, NamedReader, decode_record, record_key
from topics.readers.reporter import REPORT_S

# An hour of reports and one for each reader before.
READ_S_MAX: Final = 60.0
# A reader that has reported within this time is running: three reports.
RUNNING_S: Final = 3 * REPORT_S


class ReadersFeed:
    """Follows the readers' topic of a keyspace; each look reads what is new."""

    def __init__(self, config: ClientConfig, keyspace: str) -> None:
        """Begin at the start of the topic; nothing is read yet."""
        self._config = config
        self._topic = readers_topic(keyspace)
        self._reports = LastReports()
        self._next_offset = 0

    def look(self, consumer: Consumer | None = None) -> tuple[NamedReader, ...]:
        """Return the readers in the order of their names.

        TopicMissing before a producer has created the topic; `consumer` as in PartitionReader.
        """
        with PartitionReader(self._config, self._topic, 0, READ_S_MAX, consumer) as reader:
            start, end = reader.bounds()
            if end < self._next_offset:  # the topic was deleted and created again
                self._reports, self._next_offset = LastReports(), 0
            for record in reader.records(max(start, self._next_offset), end):
                if record.value is None:
                    self._reports.forget((record.key or b"").decode())
                else:
                    where = f"{self._topic}, offset {record.offset}"
                    self._reports.take(decode_record(record.value, where))
            self._next_offset = end
        return self._reports.readers()


def read_readers(config: ClientConfig, keyspace: str) -> tuple[NamedReader, ...]:
    """Return the named readers of a keyspace, without appliers; none before a producer's start."""
    try:
        found = ReadersFeed(config, keyspace).look()
    except TopicMissing:
        return ()
    return tuple(reader for reader in found if ApplierName.parse(reader.last.name) is None)


def forget_reader(config: ClientConfig, keyspace: str, name: str) -> None:
    """Remove a reader that is gone for good, and its group.

    UsageError when there is none of this name, or while it still runs: it would report again.
    """
    found = {reader.last.name: reader.last for reader in read_readers(config, keyspace)}
    if check_reader_name(name) not in found:
        known = ", ".join(found) or "none"
        raise UsageError(f"keyspace {keyspace}: no reader {name!r} has reported (readers: {known})")
    last = found[name]
    ago_s = time.time() - last.at_us / 1e6
    if ago_s < RUNNING_S:
        raise UsageError(
            f"keyspace {keyspace}: reader {name} reported {max(0, ago_s):.0f} s ago from "
            f"{last.host}, so it still runs: end it, and forget it {RUNNING_S:.0f} s later"
        )
    _remove(config, readers_topic(keyspace), record_key(name))
    delete_group(config, keyspace, name)


def forget_appliers(config: ClientConfig, keyspace: str, under_way: Collection[str]) -> None:
    """Remove what appliers have reported, but for those of the reshards that are under way.

    One that still runs reports again, and a later call removes that.
    """
    try:
        found = ReadersFeed(config, keyspace).look()
    except TopicMissing:  # no producer has created it, so nobody has reported
        return
    for reader in found:
        applier = ApplierName.parse(reader.last.name)
        if applier is not None and applier.reshard_id not in under_way:
            _remove(config, readers_topic(keyspace), record_key(reader.last.name))


def _remove(config: ClientConfig, topic: str, key: bytes) -> None:
    doing = f"writing to {topic}"
    failures: list[KafkaError] = []
    producer = open_producer(config)
    with kafka_errors(doing, config.brokers):
        producer.produce(
            topic,
            None,
            key,
            partition=0,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        left = producer.flush(REQUEST_TIMEOUT_S)
    if failures:
        raise kafka_error(KafkaException(failures[0]), doing, config.brokers)
    if left:
        raise Retry(f"{doing} (brokers {config.brokers}): no answer in {REQUEST_TIMEOUT_S:g} s")
