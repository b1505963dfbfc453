"""Runs table topics in Spark's tests, and reads the topics back."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql import SparkSession

from sinks.table_topics.options import EnvelopeOptions, TopicOptions
from spark_consumers.sink_query import SinkProgress
from spark_consumers.table_topics import run_table_topics
from tests.spark_consumers.shop import Shop
from topics.kafka.client import ClientConfig, open_consumer

PARTITIONS = 3
READ_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Read:
    """A record of a table's topic."""

    partition: int
    key: Any
    value: Any
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def op(self) -> str | None:
        """Debezium's letter; None of a tombstone."""
        return None if self.value is None else str(self.value["op"])


def topic_options(keyspace: str, **more: Any) -> TopicOptions:
    """Options of a query whose prefix is its keyspace."""
    envelope = EnvelopeOptions(prefix=keyspace, keyspace=keyspace)
    return TopicOptions(**{"envelope": envelope, "tasks": 2, "partitions": PARTITIONS, **more})


def write_topics(
    spark: SparkSession,
    shop: Shop,
    folder: Path,
    *,
    topics: TopicOptions | None = None,
    **more: str,
) -> SinkProgress:
    """Write what is on Kafka; `more` are options of the source."""
    options = shop.options(**more)
    del options["keyspace"]
    return run_table_topics(
        spark,
        str(folder / "checkpoint"),
        options,
        topics or topic_options(shop.keyspace),
        trigger="availableNow",
    )


def read_topic(config: ClientConfig, topic: str, partitions: int = PARTITIONS) -> list[Read]:
    """All records that a read_committed consumer gets, by partition and in order."""
    consumer = open_consumer(config)
    try:
        return [
            record
            for partition in range(partitions)
            for record in _read_partition(consumer, topic, partition)
        ]
    finally:
        consumer.close()


def _read_partition(consumer: Consumer, topic: str, partition: int) -> list[Read]:
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Read] = []
    while True:
        message = consumer.poll(READ_S_MAX)
        assert message is not None, f"{topic}[{partition}] does not end"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            return found
        headers: Any = message.headers() or []
        texts = {name: value.decode() for name, value in headers}
        found.append(Read(partition, _json(message.key()), _json(message.value()), texts))


def _json(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def last_rows(records: list[Read]) -> dict[int, Any]:
    """What compaction leaves: the row of each id; deleted ones are left out."""
    rows: dict[int, Any] = {}
    for record in records:
        value = record.value
        rows[record.key["id"]] = None if value is None else value["after"]
    return {key: row for key, row in rows.items() if row is not None}


def rows_written(spark: SparkSession, folder: str, options: dict[str, str]) -> int:
    """Write what is on Kafka; return the number of records. A case for a cluster."""
    source = dict(options)
    topics = topic_options(source.pop("keyspace"), tasks=4)
    checkpoint = f"{folder}/checkpoint"
    return run_table_topics(spark, checkpoint, source, topics, trigger="availableNow").rows
