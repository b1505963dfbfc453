from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from event_token.errors import Halt, UsageError
from spark_consumers.sink_query.batch_id import batch_id
from spark_consumers.sink_query.checkpoint_files import batch_span, checkpoint_state
from spark_consumers.sink_query.frame import PARTITIONS_MAX, routed, sink_frame
from spark_consumers.sink_query.run import SinkProgress
from tests.spark_consumers.shop import ORDERS, SHARDS, Change, Shop
from tests.spark_consumers.sink_query.seen_rows import seen_rows
from tests.topics.shard_writer import CELL_US


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


def test_a_task_knows_its_batch_and_the_driver_its_span(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    """Batches follow each other: each begins at the position at which the one before it ends."""
    shop.write(30)

    rows = seen_rows(spark, str(tmp_path), shop.options(maxRowsPerBatch="20"), 2)

    checkpoint = str(tmp_path / "checkpoint")
    numbers = sorted({row["batch"] for row in rows})
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 1
    state = checkpoint_state(checkpoint, {})
    assert state is not None
    assert (state.last_batch, state.position) == (
        numbers[-1],
        batch_span(checkpoint, numbers[-1], {})[1],
    )
    spans = [batch_span(checkpoint, number, {}) for number in numbers]
    assert [end for _, end in spans[:-1]] == [begin for begin, _ in spans[1:]]
    for number, (begin, end) in zip(numbers, spans, strict=True):
        count = Counter(row["shard"] for row in rows if row["batch"] == number)
        for shard in SHARDS:
            before = begin.shards[shard].seq if shard in begin.shards else 0
            assert end.shards[shard].seq - before == count[shard]


@pytest.mark.parametrize("partitions", [0, 3, 2 * PARTITIONS_MAX])
def test_keys_are_divided_by_a_power_of_two(
    spark: SparkSession, shop: Shop, partitions: int
) -> None:
    """A number of tasks into which buckets cannot be divided is refused."""
    options = shop.options()
    frame = sink_frame(spark, options.pop("keyspace"), options, token=False)

    assert "token" not in frame.columns
    with pytest.raises(UsageError, match="power of two"):
        routed(frame, partitions)


def test_only_a_task_has_a_batch() -> None:
    """Asked outside of a task, the batch is not a number that looks right."""
    with pytest.raises(Halt, match="not inside a Spark task"):
        batch_id()
