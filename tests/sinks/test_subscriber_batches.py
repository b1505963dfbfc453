from collections.abc import Iterator
from contextlib import closing
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from sinks import subscriber_batches
from sinks.resume import BatchStep, HeldBatch, step_of
from sinks.subscriber_batches import Batches, StreamBatch
from tests.spark_consumers.patience import patiently
from tests.spark_consumers.shop import SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.arrow.output_columns import SINK_COLUMNS
from topics.records.vevent import Row
from topics.stream.subscriber import StreamSubscriber

# On both shards together.
EVENTS = 12
# Longer than the rest of a batch takes to arrive, on any machine.
WAIT_MS = 120_000


def order(number: int, note: str) -> Row:
    return {"id": number, "note": note, "price": None}


@pytest.fixture
def written(shop: Shop) -> Shop:
    """Transactions of three rows, keys that change, a deletion and a statement, on both shards."""
    for i, shard in enumerate(SHARDS):
        low, high = b"\x10", b"\xf0"
        new = [
            Change(shop.now_us + i, after=order(10 * i + n, "new"), last=n == 2, ids=(None, low))
            for n in range(3)
        ]
        moved = Change(
            shop.now_us + i,
            order(10 * i, "new"),
            order(10 * i + 5, "moved"),
            ids=(low, high),
        )
        gone = Change(shop.now_us + i, before=order(10 * i + 1, "new"), ids=(low, None))
        told = Change(shop.now_us + i, statement="ALTER TABLE orders COMMENT 'x'")
        shop.writers[shard].write([*new, moved, gone, told])
    shop.now_us += CELL_US
    for writer in shop.writers.values():
        writer.promise(shop.now_us)
    return shop


def batches_of(shop: Shop, rows: int, ms: int) -> Iterator[StreamBatch]:
    """The batches of what was written."""
    reader = StreamSubscriber(shop.keyspace, "-", "earliest", config=shop.config)
    with closing(reader):
        read = 0
        for batch in Batches(reader, rows, ms):
            read += batch.rows.num_rows
            yield batch
            if read == EVENTS:
                return


def test_a_subscriber_gives_the_rows_that_spark_gives(spark: SparkSession, written: Shop) -> None:
    """Without Spark a sink gets the same columns, also of a part of a shard."""
    for key_range in ("-", "-20"):
        columns = {"columns": ",".join(SINK_COLUMNS), "keyRange": key_range}
        frame = written.batch(spark, **columns).orderBy("timestamp_us", "shard", "seq")
        expected = [
            {
                name: bytes(value) if name == "record" else value
                for name, value in row.asDict().items()
            }
            for row in patiently(frame.collect)
        ]
        reader = StreamSubscriber(written.keyspace, key_range, "earliest", config=written.config)

        with closing(reader):
            batches = Batches(reader, rows=100, ms=200)
            found: list[dict[str, object]] = []
            while len(found) < len(expected):
                found += next(batches).rows.to_pylist()

        assert [dict(sorted(row.items())) for row in found] == [
            dict(sorted(row.items())) for row in expected
        ]


def test_batches_follow_each_other_and_end_with_transactions(written: Shop) -> None:
    """F30: a batch begins where the one before it ends, also after a restart from a target."""
    every = list(batches_of(written, rows=2, ms=200))

    target: HeldBatch | None = None
    for number, batch in enumerate(every):
        planned = batch.planned("q", number)
        assert step_of("target", target, planned) is BatchStep.APPLY
        target = HeldBatch("q", number, planned.end)
        assert step_of("target", target, planned) is BatchStep.REPLAY
    gtids = [{(r["shard"], r["gtid"]) for r in batch.rows.to_pylist()} for batch in every]
    assert sum(map(len, gtids)) == len(set().union(*gtids))
    position = every[0].end
    with closing(
        StreamSubscriber(written.keyspace, "-", position, config=written.config)
    ) as reader:
        again = next(Batches(reader, rows=1, ms=200))
    assert again.begin == position
    assert again.rows.slice(0, 1).equals(every[1].rows.slice(0, 1))


def test_changes_of_a_subscriber_are_those_of_a_task(written: Shop) -> None:
    """A batch without Spark is reduced to the last change of each key."""
    [batch] = batches_of(written, rows=EVENTS, ms=WAIT_MS)

    [orders] = batch.changes()
    kept = orders.rows.select(["_key", "_deleted"])
    assert sorted((row["_key"], row["_deleted"]) for row in kept.to_pylist()) == sorted(
        (f"[{10 * i + n}]", n in {0, 1}) for i in range(2) for n in (0, 1, 2, 5)
    )


def test_a_batch_that_lasts_long_enough_ends_without_rows(written: Shop) -> None:
    """With `lasts_ms` the position follows the stream while there is nothing to apply."""
    with closing(
        StreamSubscriber(written.keyspace, "-", "earliest", config=written.config)
    ) as reader:
        batches = Batches(reader, rows=EVENTS, ms=WAIT_MS, lasts_ms=200)
        last = next(batch for batch in batches if batch.end.frontier_us == written.now_us)
        written.now_us += CELL_US
        for writer in written.writers.values():
            writer.promise(written.now_us)

        later = next(batch for batch in batches if batch.end != batch.begin)

    assert (later.begin, later.rows.num_rows) == (last.end, 0)
    assert later.end.frontier_us == written.now_us


def test_a_batch_ends_after_some_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the transaction in which its records reach BYTES_MAX, however many rows it may have."""
    monkeypatch.setattr(subscriber_batches, "BYTES_MAX", 4)
    events = [Mock(record=b"row", last=last) for last in (True, False, False, True, True, True)]
    reader = Mock(take=Mock(side_effect=[[event] for event in events]))
    batches = Batches(reader)

    batches._fill()

    assert batches._events == events[:4]


def test_a_closed_subscriber_ends_the_batches(written: Shop) -> None:
    """`close` ends the iteration; limits that make no batch are refused."""
    reader = StreamSubscriber(written.keyspace, "-", "earliest", config=written.config)
    batches = Batches(reader)
    reader.close()

    assert list(batches) == []
    with pytest.raises(UsageError, match="must be positive"):
        Batches(reader, rows=0)
