"""Copied rows in the change log: they are kept, and with the changes they make the table."""

from collections import Counter
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_consumers.replay import ShardTable, check_changelog, replay_changelog
from tests.spark_consumers.log_writer import NewRow
from tests.spark_consumers.shop import ORDERS, SHARDS, T0_US, Shop
from tests.spark_consumers.test_change_log import run_now
from topics.vevent import EventType, Row


def order(number: int, note: str) -> Row:
    """A row."""
    return {"id": number, "note": note, "price": None}


def change(before: Row | None, after: Row | None) -> NewRow:
    """A change of the stream."""
    return NewRow(T0_US, ORDERS, before, after)


def chunk(*rows: Row, end: EventType = EventType.LAST_PK) -> list[NewRow]:
    """Copied rows as the producer writes them: one transaction, ended by a record of its own."""
    copied = [NewRow(T0_US, ORDERS, after=row, last=False, copied=True) for row in rows]
    return [*copied, NewRow(T0_US, None, statement="{}", statement_type=end)]


def test_copied_rows_and_changes_make_the_table(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """READ before, behind and ahead of changes of its row, and again by a second copy."""
    shop.writers[SHARDS[0]].commit(
        [
            change(order(1, "was there"), order(1, "changed")),
            # 3 and 6 are seen before their changes stand in the log.
            *chunk(order(1, "changed"), order(2, "was there"), order(3, "new"), order(6, "moved")),
            change(None, order(3, "new")),
            change(order(4, "was there"), order(6, "moved")),
            change(order(2, "was there"), order(5, "moved")),
            change(order(1, "changed"), None),
            *chunk(order(8, "was there"), end=EventType.COPY_COMPLETED),
            change(None, order(1, "again")),
            change(order(8, "was there"), None),
            *chunk(order(1, "again"), order(3, "new"), end=EventType.COPY_COMPLETED),
        ]
    )
    # The same key elsewhere is another row.
    shop.writers[SHARDS[1]].commit(chunk(order(1, "there"), end=EventType.COPY_COMPLETED))
    for writer in shop.writers.values():
        writer.heartbeat(T0_US + 20_000)
    run_now(spark, shop, tmp_path)

    log = str(tmp_path / "log")
    report = check_changelog(log)
    assert (report.lost, report.repeated, report.out_of_order) == (0, 0, 0)
    tables = replay_changelog(log)
    found = {
        place.shard: sorted((row["id"], row["note"]) for row in table.rows())
        for place, table in tables.items()
    }
    assert set(tables) == {ShardTable(shard, "shop", "orders") for shard in SHARDS}
    assert found == {
        SHARDS[0]: [(1, "again"), (3, "new"), (5, "moved"), (6, "moved")],
        SHARDS[1]: [(1, "there")],
    }
    ops = Counter(DeltaTable(log).to_pyarrow_table(columns=["op"])["op"].to_pylist())
    assert ops == {"READ": 8, "INSERT": 2, "UPDATE": 3, "DELETE": 2, "NONE": 4}
