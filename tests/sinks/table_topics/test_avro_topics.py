"""Avro topics and a schema registry, Apicurio Registry."""

import io
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from sinks.table_topics.options import EnvelopeOptions, Format
from sinks.table_topics.registration import SubjectIds
from tests.faults.proxy import Proxy
from tests.sinks.table_topics.java_partitions import java_partition, murmur2
from tests.sinks.table_topics.topic_queries import (
    PARTITIONS,
    READ_S_MAX,
    topic_options,
    write_topics,
)
from tests.spark_consumers.shop import ORDERS, Change, Shop
from tests.topics.schemas.apicurio import CONFLUENT_PATH, apicurio
from tests.topics.shard_writer import CELL_US
from topics.kafka.client import ClientConfig, open_consumer
from topics.records.table_shape import (
    Column,
    TableShape,
    ValueKind,
    row_schema,
    schema_id_of,
    schema_text,
)
from topics.records.vevent import Row
from topics.schemas import RegistryClient, RegistrySchemaIds

pytestmark = pytest.mark.full

POLL_S = 0.05
ID = Column("id", ValueKind.LONG, "bigint")
NARROW = replace(ORDERS, columns=(ID, Column("amount", ValueKind.INT, "int")))
WIDE = replace(
    ORDERS,
    columns=(
        ID,
        Column("amount", ValueKind.LONG, "bigint"),
        Column("note", ValueKind.STRING, "text"),
    ),
)
TEXT = replace(ORDERS, columns=(ID, Column("amount", ValueKind.STRING, "text")))
# The vectors of Kafka's own test of Utils.murmur2.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@dataclass(frozen=True, slots=True)
class Registry:
    """A running registry behind a proxy."""

    proxy: Proxy

    @property
    def url(self) -> str:
        """Its address, as a user gives it."""
        return f"http://127.0.0.1:{self.proxy.port}{CONFLUENT_PATH}"

    def ask(self, path: str) -> Any:
        """The answer to a GET; None when there is nothing."""
        return RegistryClient(self.url).call("GET", path, None)

    @contextmanager
    def down_until_asked(self) -> Iterator[None]:
        """Refuse connections until one has been tried."""
        before, is_over = self.proxy.accepted, threading.Event()

        def heal() -> None:
            while self.proxy.accepted == before and not is_over.wait(POLL_S):
                pass
            self.proxy.heal()

        self.proxy.refuse()
        healing = threading.Thread(target=heal)
        healing.start()
        try:
            yield
            assert self.proxy.accepted > before
        finally:
            is_over.set()
            healing.join()

    def check(self, level: str, subject: str | None = None) -> None:
        """Set the compatibility of a subject, or the global rule."""
        path = "/config" if subject is None else f"/config/{subject}"
        RegistryClient(self.url).must("PUT", path, {"compatibility": level})


@pytest.fixture(scope="module")
def registry(real_servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Apicurio Registry: its start is most of what these tests cost."""
    with apicurio(tmp_path_factory.mktemp("apicurio")) as port, Proxy(port) as proxy:
        yield Registry(proxy)


def write_rows(shop: Shop, shape: TableShape, *rows: Row) -> None:
    """Write orders of a version of their table, in turn to both shards."""
    for i, row in enumerate(rows):
        writer = list(shop.writers.values())[i % 2]
        writer.write([Change(shop.now_us + i, after=row, shape=shape)])
    shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


def write_avro(spark: SparkSession, shop: Shop, folder: Path, registry: Registry) -> None:
    """Write what is on Kafka."""
    envelope = EnvelopeOptions(shop.keyspace, shop.keyspace, format=Format.DEBEZIUM_AVRO)
    topics = topic_options(shop.keyspace, envelope=envelope, registry_url=registry.url)
    write_topics(spark, shop, folder, topics=topics)


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


def read_rows(registry: Registry, shop: Shop, count: int) -> list[Row]:
    """The rows after the changes, as a consumer gets them that knows only the newest version.

    Each lies in the partition of its key that Java's producers choose.
    """
    topic = f"{shop.keyspace}.shop.orders"

    def decoded(message: bytes, part: str) -> Any:
        written = registry.ask(f"/schemas/ids/{schema_id_of(message, topic)}")["schema"]
        newest = registry.ask(f"/subjects/{topic}-{part}/versions/latest")["schema"]
        body = io.BytesIO(message[5:])
        return fastavro.schemaless_reader(body, json.loads(written), json.loads(newest))

    rows = {}
    for partition, key, value in read_messages(shop.config, topic, count):
        assert partition == java_partition(key, PARTITIONS)
        rows[decoded(key, "key")["id"]] = decoded(value, "value")["after"]
    return [rows[key] for key in sorted(rows)]


def test_topics_are_read_with_the_newest_schema_after_an_alter(
    spark: SparkSession, shop: Shop, registry: Registry, tmp_path: Path
) -> None:
    """The registry is down when the query starts: the batch waits for it, and is written once.

    Then one shard is altered before the other; the wider version is the subject's second schema.
    A version that the registry refuses leaves nothing of its batch in the topic; the query goes on
    once the error's advice is taken.
    """
    write_rows(shop, NARROW, {"id": 1, "amount": 1}, {"id": 2, "amount": None})
    with registry.down_until_asked():
        write_avro(spark, shop, tmp_path, registry)
    topic = f"{shop.keyspace}.shop.orders"
    subject = f"{topic}-value"
    versions = f"/subjects/{subject}/versions"
    registry.check("BACKWARD", subject)
    write_rows(shop, WIDE, {"id": 3, "amount": 1 << 40, "note": "new"})
    write_rows(shop, NARROW, {"id": 4, "amount": 4})
    write_avro(spark, shop, tmp_path, registry)

    assert read_rows(registry, shop, 4) == [
        {"id": 1, "amount": 1, "note": None},
        {"id": 2, "amount": None, "note": None},
        {"id": 3, "amount": 1 << 40, "note": "new"},
        {"id": 4, "amount": 4, "note": None},
    ]
    # Of two tasks that register a schema at the same time, Apicurio may keep both.
    newest = registry.ask(f"{versions}/latest")["version"]
    texts = [registry.ask(f"{versions}/{n}")["schema"] for n in range(1, newest + 1)]
    assert len(dict.fromkeys(texts)) == 2
    assert "note" in texts[-1]

    before = {schema_id_of(value, topic) for _, _, value in read_messages(shop.config, topic, 4)}
    write_rows(shop, TEXT, {"id": 5, "amount": "two"})
    with pytest.raises(UsageError, match=rf"409 .* of subject {subject} to NONE"):
        write_avro(spark, shop, tmp_path, registry)
    registry.check("NONE", subject)
    write_avro(spark, shop, tmp_path, registry)

    after = {schema_id_of(value, topic) for _, _, value in read_messages(shop.config, topic, 5)}
    assert len(after - before) == 1


def test_a_schema_has_one_id_whoever_registers_it_and_when(registry: Registry) -> None:
    """Tasks that begin at the same time agree; so does a late one with a version since widened."""
    narrow, wide = (
        json.dumps(
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": ["null", kind], "default": None}],
            }
        )
        for kind in ("int", "long")
    )
    tasks = [SubjectIds(registry.url) for _ in range(4)]
    with ThreadPoolExecutor(len(tasks)) as threads:
        ids = set(threads.map(lambda task: task.register("agreed-value", narrow), tasks))
    assert len(ids) == 1

    assert SubjectIds(registry.url).register("agreed-value", wide) not in ids
    assert SubjectIds(registry.url).register("agreed-value", narrow) in ids


def test_shard_logs_keep_incompatible_versions_in_it(registry: Registry) -> None:
    """A table's versions are what its DDL says, and read back as they were registered."""
    ids = RegistrySchemaIds(registry.url)
    texts = [schema_text(row_schema(shape, "commerce")) for shape in (WIDE, NARROW, TEXT)]

    found = [ids.register(text) for text in texts]

    assert len(set(found)) == len(texts)
    reader = RegistrySchemaIds(registry.url)
    assert [json.loads(reader.text_of(number)) for number in found] == list(map(json.loads, texts))
    assert [RegistrySchemaIds(registry.url).register(text) for text in texts] == found
    newest = reader.newest_of("commerce", "shop", "orders")
    assert newest is not None
    assert (newest[0], json.loads(newest[1])) == (found[-1], json.loads(texts[-1]))


def test_a_global_rule_is_named_where_it_is_in_the_way(registry: Registry) -> None:
    """In Apicurio Registry it holds in spite of a subject's NONE: the advice is to remove it."""
    shapes = [replace(shape, table="ruled") for shape in (NARROW, TEXT)]
    narrow, text = (schema_text(row_schema(shape, "commerce")) for shape in shapes)
    registry.check("BACKWARD")
    try:
        logs, topics = RegistrySchemaIds(registry.url), SubjectIds(registry.url)
        logs.register(narrow)
        topics.register("ruled-value", narrow)
        with pytest.raises(
            UsageError, match=r"check subject shardstream\.commerce\.shop\.ruled: remove"
        ):
            logs.register(text)
        with pytest.raises(UsageError, match=r"ruled-value to NONE .* remove the global rule too"):
            topics.register("ruled-value", text)
    finally:
        registry.check("NONE")

    assert logs.register(text) == topics.register("ruled-value", text)


def test_partitions_are_computed_as_in_java() -> None:
    """The hash that these tests compare with gives the numbers of Kafka's Java client."""
    found = {key: murmur2(key) for key in VECTORS}

    assert {key: number & 0xFFFFFFFF for key, number in VECTORS.items()} == found
