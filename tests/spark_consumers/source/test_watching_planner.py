"""What the planner of a query remembers beside the plan: bounds of tasks, heads, and its end."""

from event_token import ShardPosition, StreamPosition
from spark_consumers.source.micro_batches import BOUND_ROWS_MIN, BOUNDS_MAX, WatchingPlanner
from spark_consumers.source.options import SourceOptions
from topics.progress.record import GRID_US, Progress, Tick
from topics.reading.planner import Batch, ShardRange

START_US = 1_700_000_000_000_000
STEP = 5_000  # rows of a Kafka transaction


def planner() -> WatchingPlanner:
    """A planner at the beginning of one shard."""
    options = SourceOptions.parse({"keyspace": "ks", "kafka.bootstrap.servers": "nowhere:1"})
    return WatchingPlanner(StreamPosition(0, 0, {"-": ShardPosition(0, 0, None)}), options, {})


def progress(number: int) -> Progress:
    """The record of the Kafka transaction of this number, from 1 on; each has its grid cell."""
    first, last = (number - 1) * STEP + 1, number * STEP
    time_us = START_US + number * GRID_US
    tick = Tick(time_us, first - 1)
    return Progress(first, last, last, "mysql", "", time_us, (tick,), None, "", 0, 0)


def test_tasks_end_where_enough_rows_lie_between() -> None:
    """D10: a bound is remembered every 10,000 rows, in numbers, and forgotten once it is read."""
    assert (BOUND_ROWS_MIN, BOUNDS_MAX) == (10_000, 10_000)
    watching = planner()
    for number in range(1, 9):
        watching.observe("-", progress(number), 0)
    whole = ShardRange("-", 0, 8 * STEP, 1, 8 * STEP)

    assert watching.splits(whole, 10_000) == [
        (STEP, STEP),
        (3 * STEP, 3 * STEP),
        (5 * STEP, 5 * STEP),
        (7 * STEP, 7 * STEP),
    ]
    assert watching.splits(whole, 10_000) == []


def test_a_query_ends_at_the_records_that_it_is_given() -> None:
    """D10: progress beyond the end is not taken, and shards are unread until theirs has come."""
    watching = planner()
    watching.observe("-", progress(1), 0)
    assert watching.unread == set()
    watching.end_at({"-": progress(2)})

    assert watching.unread == {"-"}
    watching.observe("-", progress(2), 0)
    assert watching.unread == set()
    watching.observe("-", progress(3), 0)
    watching.observe("80-", progress(1), 0)

    assert watching.heads_us == {"-": progress(2).head_us}
    batch = watching.next_batch(0)
    assert isinstance(batch, Batch)
    assert batch.end.shards["-"].seq == STEP


def test_progress_that_skips_the_end_ends_the_shard() -> None:
    """D10: a later record than the end tells that the end will not come, by its rows or head."""
    watching = planner()
    watching.end_at({"-": progress(2)})
    watching.observe("-", progress(3), 0)

    assert watching.unread == set()
    assert watching.heads_us == {}
