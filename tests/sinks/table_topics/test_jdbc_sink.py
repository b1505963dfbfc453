from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from sinks.table_topics.options import EnvelopeOptions
from tests.postgres_servers import PostgresFixture
from tests.sinks.table_topics.jdbc_sink import jdbc_sink
from tests.sinks.table_topics.moving_orders import MovingOrders
from tests.sinks.table_topics.topic_queries import topic_options, write_topics
from tests.spark_consumers.shop import Shop
from tests.waiting import wait_for

pytestmark = pytest.mark.full

STEPS = 60


def test_debezium_jdbc_sink_makes_the_source_tables_from_our_topics(
    spark: SparkSession, shop: Shop, postgres: PostgresFixture, tmp_path: Path
) -> None:
    """Rows of two shards, moved ones, changed keys and deletes are in PostgreSQL as in MySQL."""
    envelope = EnvelopeOptions(prefix=shop.keyspace, keyspace=shop.keyspace, schemas=True)
    topics = topic_options(shop.keyspace, envelope=envelope)
    orders = MovingOrders(shop, seed=15)
    orders.run(STEPS)
    write_topics(spark, shop, tmp_path, topics=topics, maxRowsPerBatch="30")
    database = postgres.new_database()

    with jdbc_sink(
        tmp_path / "connect",
        shop.bootstrap_servers,
        f"{shop.keyspace}.shop.orders",
        postgres,
        database,
    ) as sink:
        wanted = sorted((n, row["note"], row["price"]) for n, (_, row) in orders.rows.items())

        def is_equal() -> bool:
            sink.check_alive()
            return rows_of(postgres, database) == wanted

        wait_for(
            "both are equal",
            is_equal,
            lambda: (rows_of(postgres, database), wanted, sink.log_tail()),
        )
        orders.run(STEPS)
        write_topics(spark, shop, tmp_path, topics=topics)
        wanted = sorted((n, row["note"], row["price"]) for n, (_, row) in orders.rows.items())
        wait_for(
            "both are equal",
            is_equal,
            lambda: (rows_of(postgres, database), wanted, sink.log_tail()),
        )


def rows_of(postgres: PostgresFixture, database: str) -> list[tuple[Any, ...]]:
    """The rows that the sink has written; none before it has created the table."""
    with postgres.connect(database) as connection:
        try:
            found = connection.execute("SELECT id, note, price FROM orders ORDER BY id").fetchall()
        except psycopg.errors.UndefinedTable:
            return []
    return [tuple(row) for row in found]
