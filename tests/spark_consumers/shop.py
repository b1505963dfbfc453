"""A small keyspace for Spark's tests: two shards, orders in both, in known order."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader

from tests.spark_consumers.log_writer import NewRow, ShardLogWriter, make_keyspace
from topics.records.table_shape import Column, TableShape, ValueKind

SHARDS = ("-80", "80-")
T0_US = 1_760_000_000_000_000
CELL_US = 10_000

ORDERS = TableShape(
    "shop",
    "orders",
    (
        Column("id", ValueKind.LONG, "bigint"),
        Column("note", ValueKind.STRING, "varchar(40)"),
        Column("price", ValueKind.DECIMAL, "decimal(10,2)", 10, 2),
    ),
    (0,),
)


class Shop:
    """Writes orders and makes readers of them."""

    def __init__(self, bootstrap_servers: str, keyspace: str) -> None:
        self.keyspace = keyspace
        self.bootstrap_servers = bootstrap_servers
        self.config, writers = make_keyspace(bootstrap_servers, keyspace, SHARDS)
        self.writers: dict[str, ShardLogWriter] = dict(zip(SHARDS, writers, strict=True))
        self._next_id = 1
        self.now_us = T0_US

    def write(self, rows: int, shards: tuple[str, ...] = SHARDS, chunk: int = 10) -> None:
        """Write that many orders to each shard, a grid cell a chunk, and promise the next cell."""
        for done in range(0, rows, chunk):
            for i, shard in enumerate(shards):
                self.writers[shard].commit(
                    [self._order(self.now_us + i) for _ in range(min(chunk, rows - done))]
                )
            self.now_us += CELL_US
        for shard in shards:
            self.writers[shard].heartbeat(self.now_us)

    def _order(self, timestamp_us: int) -> NewRow:
        self._next_id += 1
        return NewRow(
            timestamp_us,
            ORDERS,
            after={"id": self._next_id, "note": f"order {self._next_id}", "price": None},
        )

    def options(self, **more: str) -> dict[str, str]:
        """Options of format shardstream for this keyspace."""
        return {
            "keyspace": self.keyspace,
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "start": "earliest",
            **more,
        }

    def stream(self, spark: SparkSession, **more: str) -> Any:
        """A streaming DataFrame."""
        reader: DataStreamReader = spark.readStream.format("shardstream")
        return reader.options(**self.options(**more)).load()

    def batch(self, spark: SparkSession, **more: str) -> Any:
        """A batch DataFrame."""
        return spark.read.format("shardstream").options(**self.options(**more)).load()
