"""`--drop-columns` in the streaming queries of both sinks that keep rows."""

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_consumers.current_state.query.run import run_state
from spark_consumers.second_database.database import TargetOptions
from spark_consumers.second_database.run import run_database
from tests.postgres_servers import PostgresFixture
from tests.spark_consumers.shop import Change, Shop
from tests.topics.shard_writer import CELL_US


def test_a_column_that_both_shards_drop_leaves_both_targets(
    spark: SparkSession, shop: Shop, postgres: PostgresFixture, tmp_path: Path
) -> None:
    """DROP COLUMN in the logs of both shards, one batch after the rows: read on from there."""
    name = postgres.new_database()
    url = postgres.url(name, *postgres.new_login(name))
    shop.write(2)

    for number in range(2):
        if number:
            for writer in shop.writers.values():
                statement = "ALTER TABLE orders DROP COLUMN price"
                writer.write([Change(shop.now_us, statement=statement)])
            shop.now_us += CELL_US
            for writer in shop.writers.values():
                writer.promise(shop.now_us)
        state = str(tmp_path / "state")
        run_state(
            *(spark, shop.keyspace, state, str(tmp_path / "a"), shop.options()),
            drop_columns=True,
            trigger="availableNow",
        )
        run_database(
            *(spark, shop.keyspace, url, str(tmp_path / "b"), shop.options()),
            target=TargetOptions(shop.keyspace, drop_columns=True),
            trigger="availableNow",
        )
        fields = {field.name for field in DeltaTable(f"{state}/shop/orders").schema().fields}
        listed = postgres.ask(
            name,
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_schema = 'shop' AND table_name = 'orders'",
        )
        assert [("price" in fields), (("price",) in listed)] == [not number] * 2
    assert postgres.ask(name, "SELECT count(*) FROM shop.orders") == [(4,)]
