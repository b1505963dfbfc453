"""Where batches of a `Subscriber` end, and what its position is then."""

from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest

from shardstream import StreamPosition, Subscriber
from tests.spark_consumers.shop import ORDERS, Change, Shop
from tests.topics.arrow.stream_end import END, end
from topics.arrow.event_batches import BatchLimits, EventBatches
from topics.kafka.provisioning import provision_readers
from topics.named_readers import read_readers
from topics.records.vevent import Row, VEvent
from topics.stream.subscriber import StreamSubscriber

NEVER_MS = 600_000
ITEMS = replace(ORDERS, table="items")
ONE: Row = {"id": 1, "note": "one", "price": Decimal("1.50")}


def test_rows_of_other_tables_end_their_transaction(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch waits for all of a transaction, however long rows of other tables take."""
    monkeypatch.setattr("topics.stream.subscriber.RECORD_RUN_ROWS_MAX", 2)
    wanted, other = Change(shop.now_us, None, ONE, last=False), {**ONE, "note": "other"}
    others = [Change(shop.now_us, None, other, last=n == 299, shape=ITEMS) for n in range(300)]
    shop.writers["-80"].write([wanted, *others])
    end(shop)

    with Subscriber(
        shop.keyspace, start="earliest", config=shop.config, tables=["shop.orders"]
    ) as subscriber:
        batch = next(subscriber.batches(wait_ms=1))

    assert batch.rows == 1
    assert batch.ends_transaction


def test_the_position_is_that_of_the_last_batch(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was taken for later batches is no part of it; what is reported is handled."""
    monkeypatch.setattr("topics.stream.subscriber.RECORD_RUN_ROWS_MAX", 4)
    provision_readers(shop.config, shop.keyspace)
    shop.write(20)
    end(shop)
    given: list[StreamPosition] = []

    with Subscriber(
        shop.keyspace, start="earliest", config=shop.config, name="billing"
    ) as subscriber:
        found = subscriber.batches(rows_max=6, wait_ms=NEVER_MS)
        for _ in range(5):
            given.append(next(found).position)
            now = subscriber.position
            assert now is not None
            assert seqs(now) == seqs(given[-1])
    [reader] = read_readers(shop.config, shop.keyspace)

    assert subscriber.position is not None
    assert seqs(subscriber.position) == seqs(given[-1])
    assert seqs(reader.last.position) in [seqs(position) for position in given[:-1]]


def seqs(position: StreamPosition) -> dict[str, int]:
    """By shard, the last record before a position."""
    return {shard: at.seq for shard, at in position.shards.items()}


class Slow:
    """Stands for a subscriber whose first answer takes longer than it may be idle."""

    key_range = "-"
    tables = None

    def __init__(self, event: VEvent) -> None:
        self._answers: list[list[VEvent]] = [[], [event], []]
        self._took_s = [10.0, 0.0, 0.0]
        self._now_s = 0.0

    def monotonic(self) -> float:
        """Stand for the clock."""
        return self._now_s

    def schema_text(self, schema_id: int) -> str:
        """Return the schema of a row, of which there is none."""
        raise AssertionError(schema_id)

    def take_records(self, timeout_s: float, *, is_handled: bool) -> list[VEvent]:
        """Wait for the whole time if there is nothing."""
        assert is_handled
        taken = self._answers.pop(0)
        self._now_s += self._took_s.pop(0) + (0 if taken else timeout_s)
        return taken

    def give(self, last: VEvent, *, is_all: bool) -> None:
        """Take note of nothing."""


def test_opening_a_stream_is_no_idleness(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that takes longer to open than it may be idle is read all the same."""
    end(shop)
    with Subscriber(shop.keyspace, start="earliest", config=shop.config) as subscriber:
        slow = Slow(next(subscriber))
        monkeypatch.setattr("topics.arrow.event_batches.time", slow)
        found = EventBatches(
            cast("StreamSubscriber", slow), None, BatchLimits(1, 1, 500), idle_timeout_s=2.0
        )
        batch = next(found)

    assert [event.statement for event in batch.events] == [END]


class Trickle:
    """Stands for a subscriber to which a row comes every eighth of a second."""

    key_range = "-"
    tables = None

    def __init__(self, subscriber: StreamSubscriber, row: VEvent) -> None:
        self.schema_text = subscriber.schema_text
        self.give = subscriber.give
        self._row = row
        self._left = 100
        self._now_s = 0.0

    def monotonic(self) -> float:
        """Stand for the clock."""
        return self._now_s

    def take_records(self, timeout_s: float, *, is_handled: bool) -> list[VEvent]:
        """Wait for the next row."""
        assert is_handled in {False, True}
        self._now_s += min(timeout_s, 0.125)
        self._left -= 1
        return [self._row] if timeout_s >= 0.125 and self._left >= 0 else []


def test_rows_that_trickle_end_a_batch(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends some time after its first row, though the next row always comes sooner."""
    shop.write(1)
    end(shop)
    with Subscriber(shop.keyspace, start="earliest", config=shop.config) as subscriber:
        trickle = Trickle(subscriber, next(subscriber))
        monkeypatch.setattr("topics.arrow.event_batches.time", trickle)
        limits = BatchLimits(1_000, 1_000_000, 500)
        found = EventBatches(cast("StreamSubscriber", trickle), None, limits, idle_timeout_s=None)
        rows = [next(found).rows for _ in range(3)]

    assert rows == [5, 5, 5]
