"""The streaming query: the target's tables are what the changes of all shards leave."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from sinks.database.options import DatabaseOptions
from sinks.errors import TargetConflict
from sinks.rule.policy import OnTruncate
from spark_consumers.database import run_database
from spark_consumers.sink_query import SinkProgress
from tests.sinks.database.followed import TargetServer
from tests.spark_consumers.shop import Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.errors import CannotApply
from topics.records.vevent import Row

pytestmark = pytest.mark.full

HOMES = {"-80": b"\x10", "80-": b"\x90"}


@dataclass
class Database:
    """A database that follows a shop."""

    spark: SparkSession
    shop: Shop
    server: TargetServer
    folder: Path
    name: str
    url: str
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    def run(self, checkpoint: str = "checkpoint", **more: Any) -> SinkProgress:
        """Apply what is on Kafka."""
        return run_database(
            self.spark,
            self.shop.keyspace,
            self.url,
            str(self.folder / checkpoint),
            self.shop.options(),
            DatabaseOptions(partitions=2, **more),
            trigger="availableNow",
        )

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """Ask as superuser."""
        return self.server.ask(self.name, query)

    def change(self, changes: list[tuple[str, Change]]) -> None:
        """Write changes, each in a grid cell of its own."""
        for shard, each in changes:
            ids = (HOMES[shard], HOMES[shard])
            change = replace(each, timestamp_us=self.shop.now_us, ids=ids)
            self.shop.writers[shard].write([change])
            self.shop.now_us += CELL_US
        for writer in self.shop.writers.values():
            writer.promise(self.shop.now_us)


@pytest.fixture
def database(
    spark: SparkSession, shop: Shop, target_server: TargetServer, tmp_path: Path
) -> Database:
    """An empty database that an account with the documented rights writes to."""
    name = target_server.new_database()
    url = target_server.url(name, *target_server.new_login(name))
    return Database(spark, shop, target_server, tmp_path, name, url)


def test_orders_of_all_shards_become_one_table(database: Database) -> None:
    """INSERT, UPDATE, a changed key, DELETE: in the order of the merged stream, batch by batch.

    Each run has a thread of its own, as in an application with several sinks.
    """
    rng = random.Random(3)
    rows: dict[int, tuple[str, Row]] = {}
    next_id = 1
    for batch in range(2):
        changes: list[tuple[str, Change]] = []
        for _ in range(20):
            shard = rng.choice(sorted(HOMES))
            mine = [i for i, (place, _) in rows.items() if place == shard]
            if not mine or rng.random() < 0.4:
                row: Row = {"id": next_id, "note": rng.choice(["", "ü", None]), "price": None}
                changes.append((shard, Change(0, after=row)))
                rows[next_id] = (shard, row)
                next_id += 1
                continue
            before = rows.pop(rng.choice(mine))[1]
            if rng.random() < 0.3:
                changes.append((shard, Change(0, before=before)))
                continue
            after = {**before, "note": f"changed {batch}"}
            if rng.random() < 0.4:
                after["id"] = next_id
                next_id += 1
            changes.append((shard, Change(0, before=before, after=after)))
            rows[int(str(after["id"]))] = (shard, after)
        database.change(changes)

        with ThreadPoolExecutor() as threads:
            threads.submit(database.run).result()

        found = database.ask("SELECT id, note, price, _shard FROM shop.orders ORDER BY id")
        expected = [(*row.values(), shard) for _, (shard, row) in sorted(rows.items())]
        assert found == expected
    [(applied, frontier_us)] = database.ask(
        "SELECT changes, frontier_us FROM _shardstream.position"
    )
    assert applied >= len(rows)
    assert frontier_us == database.shop.now_us


def test_a_query_goes_on_from_the_target_with_the_same_options(database: Database) -> None:
    """With `stop` nothing of a batch with a TRUNCATE is applied; the next run may apply it.

    The position lies in the target: a new checkpoint starts there and repeats nothing. Rows that
    other options wrote would not fit.
    """
    database.shop.write(5)
    database.change([("-80", Change(0, statement="TRUNCATE orders"))])
    with pytest.raises(CannotApply, match=r"shop.orders, shard -80, seq .* --on-truncate apply"):
        database.run(on_truncate=OnTruncate.STOP)
    assert database.ask("SELECT to_regclass('shop.orders')") == [(None,)]
    database.run()
    assert database.ask("SELECT _shard, count(*) FROM shop.orders GROUP BY 1") == [("80-", 5)]
    [(counted,)] = database.ask("SELECT changes FROM _shardstream.position")
    database.shop.write(20)

    database.run("another")

    assert database.ask("SELECT changes FROM _shardstream.position") == [(counted + 40,)]
    assert database.ask("SELECT count(*) FROM shop.orders") == [(45,)]
    with pytest.raises(TargetConflict, match="is written by query"):
        database.run()
    with pytest.raises(UsageError, match="cannot go on with"):
        database.run("another", deletes="soft")
