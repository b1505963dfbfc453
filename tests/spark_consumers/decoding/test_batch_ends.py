"""Where batches of a `Subscriber` end, and what its position is then."""

from dataclasses import replace
from decimal import Decimal
from typing import cast

import pytest

from shardstream import StreamPosition, Subscriber
from spark_consumers.decoding.event_batches import BatchLimits, EventBatches
from tests.spark_consumers.decoding.stream_end import END, end
from tests.spark_consumers.shop import ORDERS, Change, Shop
from topics.kafka.provisioning import provision_readers
from topics.readers.feed import read_readers
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
        monkeypatch.setattr("spark_consumers.decoding.event_batches.time", slow)
        found = EventBatches(
            cast("StreamSubscriber", slow), None, BatchLimits(1, 1, 500), idle_timeout_s=2.0
        )
        batch = next(found)

    assert [event.statement for event in batch.events] == [END]
