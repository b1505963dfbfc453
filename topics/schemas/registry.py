"""Schema ids from the topic `_shardstream.schemas`, or from a Confluent-compatible registry."""

import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaError, Message, Producer

from event_token.errors import Halt, Retry
from topics.kafka.client import ClientConfig, open_producer
from topics.kafka.deadline import Deadline
from topics.kafka.errors import kafka_error, kafka_errors
from topics.kafka.partition_reader import PartitionReader, open_end_consumer
from topics.names import SCHEMAS_TOPIC
from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import fingerprint
from topics.records.wire import SCHEMA_ID_MAX
from topics.schemas.confluent import RegistrySchemaIds

__all__ = ["RegistrySchemaIds", "SchemaIds", "TopicSchemaIds", "open_schema_ids"]

# Longer than a leader change takes.
_WRITE_TIMEOUT_S: Final = 30.0
_READ_TIMEOUT_S: Final = 60.0

# Between two reads for a record that was acknowledged but is not readable yet.
_READ_BACK_PAUSE_S: Final = 0.05


def open_schema_ids(config: ClientConfig, registry_url: str | None) -> SchemaIds:
    """Return the schema ids of a keyspace: from the registry if one is given, else the topic."""
    if registry_url is None:
        return TopicSchemaIds(config)
    return RegistrySchemaIds(registry_url)


class TopicSchemaIds:
    """Schema ids of the topic: the offset of the first record with a schema's fingerprint as key.

    Producers that write the same schema concurrently find the same first record, so they agree
    without coordination. Schemas are written outside transactions, and their id is used once all
    records before them have been read. Thread-safe. No connection is made before the first call;
    its clients serve the next ones until a call fails: a new producer waits half a second for its
    id.
    """

    def __init__(self, config: ClientConfig, topic: str = SCHEMAS_TOPIC) -> None:
        self._config = config
        self._topic = topic
        self._lock = threading.Lock()
        self._texts: dict[int, str] = {}  # of every record, including repeated ones
        self._ids: dict[str, int] = {}  # by text
        self._next_offset = 0
        self._consumer: Consumer | None = None
        self._producer: Producer | None = None

    def register(self, text: str) -> int:
        """Return the id of a schema. UsageError without the topic, Retry on a broker fault."""
        with self._lock:
            if text not in self._ids:
                self._read_new()
            if text not in self._ids:
                offset = self._write(text)
                if offset == self._next_offset:  # nobody else has written since the last read
                    self._note(offset, text)
                else:
                    self._read_back(text)
            schema_id = self._ids[text]
        if schema_id > SCHEMA_ID_MAX:
            raise Halt(f"{self._topic} is full: offset {schema_id} is too large for a schema id")
        return schema_id

    def text_of(self, schema_id: int) -> str:
        """Return the schema with this id; Halt when the topic has no such record."""
        # The common case; reading a dict needs no lock.
        text = self._texts.get(schema_id)
        if text is not None:
            return text
        with self._lock:
            self._read_new()
            text = self._texts.get(schema_id)
            end = self._next_offset
        if text is None:
            raise Halt(
                f"schema {schema_id} is not in {self._topic}, which ends at offset {end} "
                f"(brokers {self._config.brokers}): a record was written with another registry, "
                f"or the topic was recreated",
            )
        return text

    def _read_new(self) -> None:
        """Read the records written since the last call."""
        consumer, self._consumer = self._consumer or open_end_consumer(self._config), None
        with PartitionReader(self._config, self._topic, 0, _READ_TIMEOUT_S, consumer) as reader:
            start, end = reader.bounds()
            if start > 0 or end < self._next_offset:
                raise Halt(
                    f"{self._topic} has lost schemas: it holds offsets {start} to {end} and "
                    f"{self._next_offset} have been read. Its records must never be deleted",
                )
            for record in reader.records(self._next_offset, end):
                text = (record.value or b"").decode()
                if record.key != fingerprint(text).encode():
                    raise Halt(
                        f"{self._topic}, offset {record.offset}: the key is not the fingerprint "
                        f"of the value: another program wrote to this topic",
                    )
                self._note(record.offset, text)
            self._next_offset = end
        self._consumer = consumer

    def _note(self, offset: int, text: str) -> None:
        self._texts[offset] = text
        self._ids.setdefault(text, offset)
        self._next_offset = offset + 1

    def _write(self, text: str) -> int | None:
        """Write a schema and return its offset; None if the broker did not tell."""
        outcome: list[tuple[KafkaError | None, int | None]] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            outcome.append((error, message.offset()))

        doing = f"registering a schema in {self._topic}"
        brokers = self._config.brokers
        producer, self._producer = self._producer or open_producer(self._config), None
        with kafka_errors(doing, brokers):
            producer.produce(
                self._topic,
                text.encode(),
                fingerprint(text).encode(),
                0,
                on_delivery=on_delivery,
            )
            producer.flush(_WRITE_TIMEOUT_S)
        if not outcome:
            # The record may still arrive; another one with the same fingerprint is harmless.
            raise Retry(f"{doing} (brokers {brokers}): no answer in {_WRITE_TIMEOUT_S:g} s")
        error, offset = outcome[0]
        if error is not None:
            raise kafka_error(error, doing, brokers)
        self._producer = producer
        return offset

    def _read_back(self, text: str) -> None:
        deadline = Deadline(_READ_TIMEOUT_S)
        self._read_new()
        while text not in self._ids:
            if deadline.passed:
                raise Retry(
                    f"a schema written to {self._topic} cannot be read back after "
                    f"{_READ_TIMEOUT_S:g} s (brokers {self._config.brokers})",
                )
            time.sleep(_READ_BACK_PAUSE_S)
            self._read_new()
