import io
import json
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from spark_consumers.table_topics.envelope.options import EnvelopeOptions, Format
from tests.spark_consumers.shop import Shop
from tests.spark_consumers.table_topics.java_partitions import java_partition, murmur2
from tests.spark_consumers.table_topics.topic_queries import (
    PARTITIONS,
    topic_options,
    write_topics,
)
from tests.topics.schemas.registry_server import registry_server
from topics.kafka.client import ClientConfig, open_consumer
from topics.records.wire import schema_id_of

READ_S_MAX = 120.0
ROWS = 10
# The vectors of Kafka's own test of Utils.murmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def read_messages(config: ClientConfig, topic: str, count: int) -> list[tuple[int, bytes, bytes]]:
    """Partition, key and value of `count` messages."""
    consumer = open_consumer(config)
    found: list[tuple[int, bytes, bytes]] = []
    try:
        consumer.assign([TopicPartition(topic, i, 0) for i in range(PARTITIONS)])
        while len(found) < count:
            message = consumer.poll(READ_S_MAX)
            assert message is not None, f"{topic} has {len(found)} messages, not {count}"
            if message.error() is None:
                found.append(
                    (message.partition() or 0, message.key() or b"", message.value() or b"")
                )
    finally:
        consumer.close()
    return found


def test_avro_is_read_with_the_registry_from_javas_partitions(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Tasks register the schemas; a key's partition is the one that Java's producers choose."""
    shop.write(ROWS)
    envelope = EnvelopeOptions(shop.keyspace, shop.keyspace, format=Format.DEBEZIUM_AVRO)
    with registry_server() as registry:
        topics = topic_options(shop.keyspace, envelope=envelope, registry_url=registry.url)
        write_topics(spark, shop, tmp_path, topics=topics)
        topic = f"{shop.keyspace}.shop.orders"
        messages = read_messages(shop.config, topic, 2 * ROWS)

        def decoded(message: bytes) -> Any:
            text = registry.schemas[schema_id_of(message, topic) - 1]
            return fastavro.schemaless_reader(io.BytesIO(message[5:]), json.loads(text), None)

        assert set(registry.subjects) == {f"{topic}-key", f"{topic}-value"}
        for partition, key, value in messages:
            assert java_partition(key, PARTITIONS) == partition
            assert decoded(value)["after"]["id"] == decoded(key)["id"]
        assert {decoded(value)["source"]["shard"] for _, _, value in messages} == {"-80", "80-"}


def test_partitions_are_computed_as_in_java() -> None:
    """The hash that these tests compare with gives the numbers of Kafka's Java client."""
    found = {key: murmur2(key) for key in VECTORS}

    assert {key: number & 0xFFFFFFFF for key, number in VECTORS.items()} == found
