"""Arrow record batches of a `Subscriber` over hops, and of rows that the stream marks."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from shardstream import ClientConfig, EventBatch, MaxHold, StreamPosition, Subscriber
from tests.topics.shard_writer import CELL_US, TIMEOUT_S, Writers
from tests.topics.splits import (
    FAR_US,
    TARGET_ROWS,
    begin_split,
    declare_split,
    finish_split,
    write_split,
)
from topics.records.vevent import EventType

Place = tuple[int, str, int]


def places(batch: EventBatch) -> list[Place]:
    """Time, shard and seq of all that a batch holds, by the merged order."""
    rows = [row for each in batch.tables for row in each.rows.to_pylist()]
    found = [(row["timestamp_us"], row["shard"], row["seq"]) for row in rows]
    return sorted([*found, *((e.timestamp_us, e.shard, e.seq) for e in batch.events)])


def read(batches: Iterator[EventBatch], count: int) -> list[EventBatch]:
    """Take batches until they hold `count` rows and events; an idle stream ends them."""
    found: list[EventBatch] = []
    for batch in batches:
        found.append(batch)
        if sum(map(len, map(places, found))) >= count:
            break
    return found


def marked(batches: Sequence[EventBatch], mark: str) -> list[tuple[str, int, Any]]:
    """Shard, seq and a mark of the rows of batches that hold one row each."""
    rows = [row for batch in batches for each in batch.tables for row in each.rows.to_pylist()]
    return [(row["shard"], row["seq"], row[mark]) for row in rows]


@pytest.mark.full
def test_a_split_is_hopped_over_while_batches_are_read(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """F24: Sources up to END, then targets from BEGIN: once, in order; each mark ends its batch.

    A new reader at the position of any batch gets exactly the rest.
    """
    left, source = begin_split(writers)
    with Subscriber(
        keyspace, start="earliest", config=config, idle_timeout_s=TIMEOUT_S
    ) as subscriber:
        batches = subscriber.batches(rows_max=2, wait_ms=200)
        found = read(batches, 5)
        expected = finish_split(left, source, targets)
        found += read(batches, len(expected) - 5)
        hops = subscriber.stats.hops

    assert [place for batch in found for place in places(batch)] == expected
    assert hops == 1
    assert [list(batch.position.shards) for batch in (found[0], found[-1])] == [
        ["-80", "80-"],
        ["-80", "80-c0", "c0-"],
    ]
    marks = [at for at, batch in enumerate(found) if batch.events]
    assert [[event.type for event in found[at].events] for at in marks] == [[EventType.JOURNAL]] * 3
    assert all(places(found[at])[-1][2] == found[at].events[0].seq for at in marks)
    for at in (0, marks[0] - 1, marks[0], marks[1], len(found) - 2):
        rest = [place for batch in found[at + 1 :] for place in places(batch)]
        position = StreamPosition.from_string(found[at].position.to_string())
        with Subscriber(
            keyspace, start=position, config=config, idle_timeout_s=TIMEOUT_S
        ) as subscriber:
            again = read(subscriber.batches(), len(rest))
        assert [place for batch in again for place in places(batch)] == rest


def test_rows_that_may_have_been_seen_are_marked(
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    targets: Writers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over a split without marks, batches hold the rows and marks that events would have."""
    monkeypatch.setattr("topics.stream.subscriber.TOPOLOGY_LOOK_S", 0.2)
    write_split(*writers("-80", "80-"), *targets("80-c0", "c0-"))
    columns = ["shard", "seq", "timestamp_us", "possible_duplicate"]

    with Subscriber(
        keyspace, start="earliest", config=config, idle_timeout_s=TIMEOUT_S
    ) as subscriber:
        batches = subscriber.batches(columns, rows_max=1)
        found = read(batches, 2)
        declare_split(config, keyspace)
        found += read(batches, len(TARGET_ROWS))

    assert marked(found, "possible_duplicate") == [
        *(("80-", 1, False), ("80-", 2, False)),
        *TARGET_ROWS,
    ]


def test_rows_of_a_shard_that_was_passed_are_late(
    config: ClientConfig, keyspace: str, writers: Writers
) -> None:
    """F23: With max_hold a silent shard is passed, and its rows are marked in their batches."""
    loud, silent = writers("-80", "80-")
    loud.commit((0, 1), (50 * CELL_US, 1))
    loud.heartbeat(FAR_US)

    with Subscriber(
        keyspace,
        start="earliest",
        config=config,
        mode=MaxHold(100),
        idle_timeout_s=TIMEOUT_S,
        tables=["shop.orders"],
    ) as subscriber:
        batches = subscriber.batches(["shard", "seq", "timestamp_us", "late"], rows_max=1)
        found = read(batches, 2)
        silent.commit((CELL_US, 2), (51 * CELL_US, 1))
        silent.heartbeat(FAR_US)
        found += read(batches, 3)
        late = subscriber.stats.late

    assert marked(found, "late") == [
        *(("-80", 1, False), ("-80", 2, False)),
        *(("80-", 1, True), ("80-", 2, True), ("80-", 3, True)),
    ]
    assert late == 3
