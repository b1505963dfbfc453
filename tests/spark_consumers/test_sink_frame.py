from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from event_token.errors import Halt, UsageError
from spark_consumers.sink_query import (
    PARTITIONS_MAX,
    SinkProgress,
    batch_id,
    checkpoint_state,
    planned_batch,
    routed,
    sink_frame,
)
from tests.sinks.seen_rows import seen_rows
from tests.spark_consumers.shop import ORDERS, SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.records.vevent import Row

PARTITIONS = 4
KEYS = 40


@pytest.mark.full
def test_a_sink_gets_the_rows_of_its_tables_and_all_statements(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """A sink reads all tables or some; not what an online ALTER prepares; always all statements.

    What it leaves out is in its progress, also of batches that end between two looks.
    """
    writer = shop.writers["-80"]
    names = ("orders", "_orders_gho", "_orders_new", "carts")
    events = [
        replace(writer.row(i * CELL_US, shape=replace(ORDERS, table=name)), after={"id": 1})
        for i, name in enumerate(names)
    ]
    shop.now_us += len(names) * CELL_US
    writer.commit_events(events)
    writer.write([Change(shop.now_us + 9, statement="DROP TABLE carts")])
    shop.now_us += CELL_US
    for each in shop.writers.values():
        each.promise(shop.now_us)

    told: list[SinkProgress] = []
    small = shop.options(maxRowsPerBatch="1")
    every = seen_rows(spark, str(tmp_path / "all"), small, 1, on_progress=told.append)
    left_out = told[-1].left_out
    some = seen_rows(
        spark,
        str(tmp_path / "some"),
        shop.options(),
        1,
        ("shop._orders_gho",),
        on_progress=told.append,
    )

    assert [row["table"] for row in every] == ["orders", "carts", ""]
    assert [row["table"] for row in some] == ["_orders_gho", ""]
    assert left_out == ("shop._orders_gho", "shop._orders_new")
    assert told[-1].left_out == ()
    assert {row["statement"] for row in some} == {None, "DROP TABLE carts"}


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


def write_steps(shop: Shop) -> None:
    """Insert, update and move each key on both shards, and run a statement after each step."""
    for step in range(3):
        for shard in SHARDS:
            images = [(order(key, f"{step - 1}"), order(key, f"{step}")) for key in range(KEYS)]
            if step == 0:
                images = [({}, after) for _, after in images]
            elif step == 2:
                images = [(old, {**new, "id": 100 + i}) for i, (old, new) in enumerate(images)]
            changes = [Change(shop.now_us, old or None, new) for old, new in images]
            statement = Change(shop.now_us, statement=f"ALTER TABLE orders COMMENT '{step}'")
            shop.writers[shard].write([*changes, statement])
        shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)


@pytest.mark.full
def test_a_task_sees_all_changes_of_its_keys_and_all_statements(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Changes of a key from all shards meet in one task, a moved key's in two; DDL in each.

    Batches follow each other: each begins at the position at which the one before it ends.
    """
    write_steps(shop)

    rows = seen_rows(spark, str(tmp_path), shop.options(maxRowsPerBatch="100"), PARTITIONS)

    tasks_of_key = defaultdict(set)
    routes = defaultdict(list)
    for row in rows:
        routes[row["shard"], row["seq"]].append(row["route"])
        assert row["task"] == row["route"] % PARTITIONS
        if row["type"] == "ROW":
            assert row["route"] in {row["key_hash"], row["old_key_hash"]}
            tasks_of_key[row["route"]].add(row["task"])
    assert {len(tasks) for tasks in tasks_of_key.values()} == {1}
    assert len(tasks_of_key) == 2 * KEYS
    assert {task for tasks in tasks_of_key.values() for task in tasks} == set(range(PARTITIONS))
    for shard in SHARDS:
        for seq in range(1, 3 * (KEYS + 1) + 1):
            found = routes.pop((shard, seq))
            if seq % (KEYS + 1) == 0:
                assert sorted(found) == list(range(PARTITIONS))
            else:
                is_moved = seq > 2 * (KEYS + 1)
                assert len(set(found)) == len(found) == (2 if is_moved else 1)
    assert routes == {}
    check_batches(str(tmp_path / "checkpoint"), rows)


def check_batches(checkpoint: str, rows: list[dict[str, Any]]) -> None:
    """The driver knows the span of each batch, and the rows of its tasks are those of the span."""
    numbers = sorted({row["batch"] for row in rows})
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 1
    state = checkpoint_state(checkpoint, {})
    assert state is not None
    assert (state.last_batch, state.position) == (
        numbers[-1],
        planned_batch(checkpoint, numbers[-1], {}).end,
    )
    batches = [planned_batch(checkpoint, number, {}) for number in numbers]
    assert [each.end for each in batches[:-1]] == [each.begin for each in batches[1:]]
    for number, each in zip(numbers, batches, strict=True):
        seen = {(row["shard"], row["seq"]) for row in rows if row["batch"] == number}
        count = Counter(shard for shard, _ in seen)
        for shard in SHARDS:
            before = each.begin.shards[shard].seq if shard in each.begin.shards else 0
            assert each.end.shards[shard].seq - before == count[shard]


def test_keys_are_divided_by_a_power_of_two(spark: SparkSession, shop: Shop) -> None:
    """A number of tasks into which buckets cannot be divided is refused."""
    options = shop.options()
    frame = sink_frame(spark, options.pop("keyspace"), options, token=False)

    assert "token" not in frame.columns
    for partitions in (0, 3, 2 * PARTITIONS_MAX):
        with pytest.raises(UsageError, match="power of two"):
            routed(frame, partitions)


def test_only_a_task_has_a_batch() -> None:
    """Asked outside of a task, the batch is not a number that looks right."""
    with pytest.raises(Halt, match="not inside a Spark task"):
        batch_id()
