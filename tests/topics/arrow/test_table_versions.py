from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.shop import ORDERS, T0_US, Change, Shop
from tests.topics.schemas.registry_server import registry_server
from tests.topics.shard_writer import CELL_US
from topics.arrow.output_columns import newest_version
from topics.records.table_shape import Column, TableShape, ValueKind, row_schema, schema_text
from topics.schemas import RegistrySchemaIds, TopicSchemaIds

WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("x", ValueKind.INT, "int")))
OTHER = replace(ORDERS, table="others")
FOREIGN = replace(ORDERS, columns=(ORDERS.columns[0], Column("x", ValueKind.BYTES, "blob")))


def texts(keyspace: str) -> list[str]:
    """Two versions of a keyspace's table, another table, then another keyspace's table."""
    own = [schema_text(row_schema(shape, keyspace)) for shape in (ORDERS, WIDER, OTHER)]
    return [*own, schema_text(row_schema(FOREIGN, "foreign"))]


@pytest.fixture
def neighbour(kafka: KafkaCluster, keyspace: str) -> Iterator[Shop]:
    """Another keyspace on the shop's broker."""
    made = Shop(kafka.bootstrap_servers, f"{keyspace}-next")
    yield made
    made.close()


def test_newest_version_in_the_topic(shop: Shop) -> None:
    """The keyspace's version registered last counts, with the schema id that its rows carry."""
    schema_ids = TopicSchemaIds(shop.config)
    ids = [schema_ids.register(text) for text in texts(shop.keyspace)]

    assert newest_version(shop.config, None, shop.keyspace, "shop", "orders") == (WIDER, ids[1])


def test_newest_version_in_a_registry(shop: Shop) -> None:
    """The same from a Confluent-compatible registry; a table without rows is refused by name."""
    with registry_server() as registry:
        schema_ids = RegistrySchemaIds(registry.url)
        ids = [schema_ids.register(text) for text in texts(shop.keyspace)]
        of_shop = (shop.config, registry.url, shop.keyspace, "shop")

        assert newest_version(*of_shop, "orders") == (WIDER, ids[1])
        with pytest.raises(UsageError, match=r"no row of shop\.missing of keyspace ks\w+ has been"):
            newest_version(*of_shop, "missing")


def test_tables_that_share_a_subject_are_told_apart(shop: Shop) -> None:
    """In a registry table `b.c` of database `a` is not taken for table `c` of database `a.b`."""
    dotted = TableShape("shop.x", "orders", ORDERS.columns, (0,))
    with registry_server() as registry:
        RegistrySchemaIds(registry.url).register(schema_text(row_schema(dotted, shop.keyspace)))

        with pytest.raises(UsageError, match=r"no row of shop\.x\.orders"):
            newest_version(shop.config, registry.url, shop.keyspace, "shop", "x.orders")


def test_keyspaces_with_a_table_of_the_same_name(
    spark: SparkSession, shop: Shop, neighbour: Shop
) -> None:
    """Batch and streaming queries of two keyspaces on one Kafka have each their own columns."""
    shop.writers["-80"].write([Change(T0_US, after={"id": 1, "note": "own", "price": None})])
    foreign = Change(T0_US, after={"id": 2, "x": b"foreign"}, shape=FOREIGN)
    neighbour.writers["-80"].write([foreign])
    wanted = {
        shop: {"id": 1, "note": "own", "price": None},
        neighbour: {"id": 2, "x": bytearray(b"foreign")},
    }
    for of in wanted:
        for writer in of.writers.values():
            writer.promise(T0_US + CELL_US)

    for of, after in wanted.items():
        columns = "after,absent,invalid_dates"
        [row] = patiently(of.batch(spark, table="shop.orders", columns=columns).collect)
        streamed = of.stream(spark, table="shop.orders").select("after.*").columns
        assert row.after.asDict() == after
        assert streamed == list(after)
