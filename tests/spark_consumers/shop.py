"""A small keyspace for Spark's tests: two shards with orders in both, in a known order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from tests.spark_consumers.patience import patiently
from tests.topics.shard_writer import CELL_US, START_US, ShardWriter, provision
from topics.kafka.client import ClientConfig
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import EventType, Op, Row, VEvent

SHARDS = ("-80", "80-")
T0_US = START_US


@dataclass(frozen=True)
class NoDatabase:
    """A database that a command needs in its settings and never connects to."""

    flavor: str = "mysql"
    host: str = "127.0.0.1"
    port: int = 1
    user: str = "nobody"
    password: str = ""


NO_DATABASE = NoDatabase()

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


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an order, or an order that was `copied`; `ids` are its keyspace ids.

    `statement`: a record of type `statement_type` instead of a row. `shape`: the table's columns.
    """

    timestamp_us: int
    before: Row | None = None
    after: Row | None = None
    last: bool = True
    statement: str | None = None
    statement_type: EventType = EventType.DDL
    copied: bool = False
    ids: tuple[bytes | None, bytes | None] = (None, None)
    shape: TableShape = ORDERS

    @property
    def op(self) -> Op:
        """The op that the images make."""
        if self.before is None and self.after is None:
            return Op.NONE
        if self.before is None:
            return Op.READ if self.copied else Op.INSERT
        return Op.DELETE if self.after is None else Op.UPDATE


class OrderWriter(ShardWriter):
    """The producer of one shard of the shop. Times are microseconds since the epoch."""

    def __init__(self, config: ClientConfig, keyspace: str, shard: str) -> None:
        super().__init__(config, keyspace, shard)
        self._row_index = 0

    def write(self, changes: Sequence[Change]) -> None:
        """Write changes and their progress in one Kafka transaction."""
        self.commit_events([self._event(change) for change in changes])

    def promise(self, head_us: int) -> None:
        """Promise a head: nothing older comes."""
        self.heartbeat(head_us - START_US)

    def _event(self, change: Change) -> VEvent:
        event = self.row(
            change.timestamp_us - START_US,
            self._row_index,
            last=change.last,
            shape=change.shape,
            op=change.op,
            ids=change.ids,
        )
        self._row_index = 0 if change.last else self._row_index + 1
        event = replace(event, before=change.before, after=change.after)
        if change.statement is None:
            return event
        return replace(
            event, type=change.statement_type, table="", shape=None, statement=change.statement
        )


class Shop:
    """Writes orders and opens readers on them."""

    def __init__(self, bootstrap_servers: str, keyspace: str) -> None:
        self.keyspace = keyspace
        self.bootstrap_servers = bootstrap_servers
        self.config = ClientConfig({"bootstrap.servers": bootstrap_servers})
        provision(self.config, keyspace, SHARDS)
        self.writers = {shard: OrderWriter(self.config, keyspace, shard) for shard in SHARDS}
        self._next_id = 1
        self.now_us = T0_US

    def write(self, rows: int, shards: tuple[str, ...] = SHARDS, chunk: int = 10) -> None:
        """Write `rows` orders per shard, one grid cell per chunk, and promise the next cell."""
        for done in range(0, rows, chunk):
            for i, shard in enumerate(shards):
                self.writers[shard].write(
                    [self._order(self.now_us + i) for _ in range(min(chunk, rows - done))]
                )
            self.now_us += CELL_US
        for shard in shards:
            self.writers[shard].promise(self.now_us)

    def close(self) -> None:
        """Close the producers."""
        for writer in self.writers.values():
            writer.close()

    def _order(self, timestamp_us: int) -> Change:
        self._next_id += 1
        return Change(
            timestamp_us,
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
        reader = spark.readStream.format("shardstream").options(**self.options(**more))
        return patiently(reader.load)

    def batch(self, spark: SparkSession, **more: str) -> Any:
        """A batch DataFrame."""
        reader = spark.read.format("shardstream").options(**self.options(**more))
        return patiently(reader.load)
