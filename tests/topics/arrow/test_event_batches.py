"""Arrow record batches of a `Subscriber`, without Spark."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import takewhile
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from event_token.errors import UsageError
from shardstream import EventBatch, StreamPosition, Subscriber
from shardstream.local.kafka_cluster import KafkaCluster
from tests.spark_consumers.shop import ORDERS, SHARDS, Change, Shop
from tests.topics.arrow.duckdb_follower import follow
from tests.topics.arrow.stream_end import END, end
from tests.topics.shard_writer import CELL_US
from topics.errors import HiddenValue
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import EventType, InvalidDate, Row, VEvent
from topics.start.start_forms import Start

NEVER_MS = 600_000
LATER = replace(ORDERS, columns=(*ORDERS.columns, Column("placed", ValueKind.DATE, "date")))
ITEMS = replace(ORDERS, table="items")
ONE: Row = {"id": 1, "note": "one", "price": Decimal("1.50")}


def subscribed(shop: Shop, key_range: str = "-", start: Start = "earliest") -> Subscriber:
    """A subscriber of the shop."""
    return Subscriber(shop.keyspace, key_range, start, config=shop.config)


def to_the_end(
    subscriber: Subscriber, columns: list[str] | None = None, **limits: int
) -> Iterator[EventBatch]:
    """Yield the batches up to the one with the last record."""
    for batch in subscriber.batches(columns, wait_ms=NEVER_MS, **limits):
        yield batch
        if batch.events and batch.events[-1].statement == END:
            return


def batches(shop: Shop, start: Start = "earliest", **limits: int) -> list[EventBatch]:
    """All batches from a start."""
    with subscribed(shop, start=start) as subscriber:
        return list(to_the_end(subscriber, None, **limits))


def rows_of(found: Sequence[EventBatch]) -> list[dict[str, Any]]:
    """The rows of batches, each batch by the merged order."""
    rows: list[dict[str, Any]] = []
    for batch in found:
        of_batch = [row for each in batch.tables for row in each.rows.to_pylist()]
        rows += sorted(of_batch, key=lambda row: (row["timestamp_us"], row["shard"], row["seq"]))
    return rows


def events_of(shop: Shop, key_range: str = "-") -> list[VEvent]:
    """The events of the same stream, without the last record."""
    with subscribed(shop, key_range) as subscriber:
        return list(takewhile(lambda event: event.statement != END, subscriber))


def write_everything(shop: Shop) -> None:
    """Write two tables, in transactions over both, a new version, a statement, and all ops."""
    first, second = (shop.writers[shard] for shard in SHARDS)
    row = ONE
    at_us = shop.now_us
    first.write([Change(at_us, None, row, last=False), Change(at_us, None, row, shape=ITEMS)])
    second.write([Change(at_us + 1, None, {**row, "id": 2, "price": None})])
    first.write([Change(at_us + CELL_US, statement="ALTER TABLE orders ADD placed DATE")])
    odd: Row = {**row, "placed": InvalidDate("0000-00-00")}
    first.write([Change(at_us + 2 * CELL_US, row, odd, shape=LATER)])
    second.write([Change(at_us + 2 * CELL_US + 1, {**row, "id": 2, "price": None}, None)])
    mark = EventType.LAST_PK
    second.write([Change(at_us + 3 * CELL_US, statement="{}", statement_type=mark)])
    first.write([Change(at_us + 4 * CELL_US, None, {**row, "id": 3}, copied=True)])
    shop.now_us += 5 * CELL_US
    end(shop)


@pytest.fixture(scope="module")
def everything(kafka: KafkaCluster) -> Iterator[Shop]:
    """A shop in which `write_everything` has written, and nobody writes any more."""
    shop = Shop(kafka.bootstrap_servers, f"ks{secrets.token_hex(4)}")
    write_everything(shop)
    yield shop
    shop.close()


def test_batches_hold_what_the_events_hold(everything: Shop) -> None:
    """Rows come once, in order, typed by table version; a statement ends its batch."""
    events = events_of(everything)
    written = [event for event in events if event.type is EventType.ROW]

    found = batches(everything)

    rows = rows_of(found)
    assert [(row["op"], row["shard"], row["seq"], row["timestamp_us"]) for row in rows] == [
        (event.op, event.shard, event.seq, event.timestamp_us) for event in written
    ]
    assert [row["after"] and row["after"]["note"] for row in rows] == [
        event.after and event.after["note"] for event in written
    ]
    assert [row["invalid_dates"] for row in rows if row["invalid_dates"]] == [
        '{"before":{},"after":{"placed":"0000-00-00"}}'
    ]
    assert [[(t.table, t.rows.num_rows) for t in batch.tables] for batch in found] == [
        [("orders", 2), ("items", 1)],
        [("orders", 1), ("orders", 2)],
    ]
    placed = found[1].tables[0].rows.schema.field("after").type
    assert [field.name for field in placed] == ["id", "note", "price", "placed"]
    assert found[0].tables[0].rows.schema.field("after").type.field("price").type == (
        pa.decimal128(10, 2)
    )
    assert [[event.type for event in batch.events] for batch in found] == [
        [EventType.DDL],
        [EventType.LAST_PK, EventType.DDL],
    ]
    assert found[0].events[0].statement == "ALTER TABLE orders ADD placed DATE"
    # How far the frontier had come by then depends on when progress was read.
    statement = events[3].position
    assert statement is not None
    assert found[0].position.shards == statement.shards


@pytest.mark.full
def test_a_reader_goes_on_exactly_after_any_batch(shop: Shop) -> None:
    """From the position of each batch the rest follows, whatever the limits of batches are.

    Nothing that was taken from Kafka is lost when batches are asked for again.
    """
    shop.write(20)
    end(shop)
    everything = rows_of(batches(shop))

    assert len(everything) == 40
    for limits in ({"rows_max": 7}, {"bytes_max": 700}, {"rows_max": 1}):
        found = batches(shop, **limits)
        assert rows_of(found) == everything
        assert all(batch.rows <= limits.get("rows_max", 40) for batch in found)
        for batch in found[: -1 : 1 + len(found) // 2]:
            done = everything.index(rows_of([batch])[-1]) + 1
            position = StreamPosition.from_string(batch.position.to_string())
            assert rows_of(batches(shop, position)) == everything[done:]
    found = []
    with subscribed(shop) as subscriber:
        while not (found and found[-1].events):
            found.append(next(subscriber.batches(rows_max=3 + len(found), wait_ms=NEVER_MS)))
    assert rows_of(found) == everything


def test_only_a_transaction_beyond_the_limit_is_cut(shop: Shop) -> None:
    """A batch ends with a transaction from half of its limit on, and says when it cuts one."""
    writer = shop.writers["-80"]
    for size in (2, 3, 9, 1):
        writer.write([Change(shop.now_us, None, ONE, last=n == size - 1) for n in range(size)])
        shop.now_us += CELL_US
    end(shop)

    found = batches(shop, rows_max=6)

    assert [(batch.rows, batch.ends_transaction) for batch in found] == [
        (5, True),
        (6, False),
        (3, True),
        (1, True),
    ]
    assert found[-1].events[0].statement == END


def test_a_part_of_a_shard_sees_one_side_of_an_update(shop: Shop) -> None:
    """An UPDATE across the border of the key range is an INSERT or a DELETE, as for events."""
    old, new = ONE, {**ONE, "note": "two"}
    for ids in ((b"\x10", b"\x70"), (b"\x70", b"\x10"), (b"\x10", b"\x11"), (b"\x70", b"\x71")):
        shop.writers["-80"].write([Change(shop.now_us, old, new, ids=ids)])
        shop.now_us += CELL_US
    end(shop)
    with subscribed(shop, "-40") as subscriber:
        rows = rows_of(list(to_the_end(subscriber)))

    assert [(row["op"], row["before"], row["after"]) for row in rows] == [
        (event.op.value, event.before, event.after) for event in events_of(shop, "-40")
    ]
    assert [row["op"] for row in rows] == ["DELETE", "INSERT", "UPDATE"]


def test_columns_are_chosen_as_in_spark(everything: Shop) -> None:
    """Fewer columns may be asked for, unless NULL would then hide something."""
    with subscribed(everything) as subscriber:
        columns = ["op", "after.id", "late", "gtid"]
        first = next(subscriber.batches(columns, wait_ms=NEVER_MS))
    with subscribed(everything) as subscriber:
        hidden = subscriber.batches(["after.placed"], rows_max=1)
        with pytest.raises(UsageError, match=r"no column 'after\.placed'"):
            next(hidden)
    with subscribed(everything) as subscriber:
        found = subscriber.batches(["after"], wait_ms=NEVER_MS)
        next(found)
        for _ in range(2):
            with pytest.raises(HiddenValue, match=r"shop\.orders, shard -80, offset \d+: "):
                next(found)

    assert first.tables[0].rows.schema.names == ["op", "after", "gtid", "late"]
    assert first.tables[0].rows["after"].to_pylist() == [{"id": 1}, {"id": 2}]
    assert set(first.tables[0].rows["late"].to_pylist()) == {False}


def test_wrong_arguments_are_refused(everything: Shop) -> None:
    """A wrong argument is one sentence, before anything is read."""
    wrong: dict[str, dict[str, Any]] = {
        "pass a list of names": {"columns": "op"},
        "no column 'nothing'": {"columns": ["nothing"]},
        "are for sinks": {"columns": ["key_hash"]},
        "rows_max 0 is not a positive number": {"rows_max": 0},
        "bytes_max '1' is not a positive number": {"bytes_max": "1"},
    }
    with subscribed(everything) as subscriber:
        for message, arguments in wrong.items():
            with pytest.raises(UsageError, match=message):
                subscriber.batches(**arguments)


@pytest.mark.full
def test_duckdb_follows_a_stream(shop: Shop) -> None:
    """The example of the docs holds every row once, with its types, over restarts."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE changes (op TEXT, id BIGINT, price DECIMAL(10, 2))")
    connection.execute("CREATE TABLE place AS SELECT 'earliest' AS position")

    for _ in range(2):
        shop.write(20)
        end(shop)
        place = connection.execute("SELECT position FROM place").fetchall()[0][0]
        with subscribed(shop, start=place) as subscriber:
            columns = ["op", "after", "absent", "invalid_dates"]
            follow(to_the_end(subscriber, columns), connection)

    assert connection.execute("SELECT count(*), count(DISTINCT id) FROM changes").fetchall() == [
        (80, 80)
    ]


@pytest.mark.full
def test_other_tables_are_left_out(shop: Shop) -> None:
    """Of the tables asked for batches hold what the events hold, and go on exactly after any."""
    write_everything(shop)
    shop.write(10)
    shop.writers["-80"].write([Change(shop.now_us, None, ONE, shape=ITEMS)])
    end(shop)

    def read(start: Start, limits: dict[str, int]) -> list[EventBatch]:
        with Subscriber(
            shop.keyspace, start=start, config=shop.config, tables=["shop.items"]
        ) as subscriber:
            found: list[EventBatch] = []
            for batch in subscriber.batches(None, wait_ms=NEVER_MS, **limits):
                found.append(batch)
                if ends(found) == 2:
                    break
        return found

    def ends(found: Sequence[EventBatch]) -> int:
        return sum(event.statement == END for batch in found for event in batch.events)

    for limits in ({}, {"rows_max": 1}, {"bytes_max": 200}):
        found = read("earliest", limits)

        assert [[each.table for each in batch.tables] for batch in found if batch.tables] == [
            ["items"],
            ["items"],
        ]
        rows = rows_of(found)
        assert [(row["op"], row["after"]["id"]) for row in rows] == [("INSERT", 1)] * 2
        assert [event.type for batch in found for event in batch.events] == [
            *(EventType.DDL, EventType.LAST_PK, EventType.DDL, EventType.DDL),
        ]
        assert all(batch.ends_transaction for batch in found)
        for at, batch in enumerate(found[:-1]):
            if ends(found[: at + 1]) == 0:
                assert rows_of(read(batch.position, limits)) == rows_of(found[at + 1 :])


def test_one_subscriber_gives_events_or_batches(everything: Shop) -> None:
    """Who reads both ways would get neither whole, and is told so."""
    with subscribed(everything) as subscriber:
        next(subscriber)
        with pytest.raises(UsageError, match="read both as events and in batches"):
            next(subscriber.batches())
    with subscribed(everything) as subscriber:
        next(subscriber.batches(rows_max=1))
        with pytest.raises(UsageError, match="read both as events and in batches"):
            next(subscriber)


def test_rows_that_are_read_for_their_records_are_complete(everything: Shop) -> None:
    """A row of a stretch, as an event, is that of an ordinary reader, and so are positions."""
    events = events_of(everything)
    found: list[VEvent] = []
    with subscribed(everything) as subscriber:
        while len(found) < len(events):
            for taken in subscriber.take_records(NEVER_MS / 1000):
                if isinstance(taken, VEvent):
                    found.append(taken)
                    ours, at = taken.position, events[len(found) - 1].position
                    assert ours is not None
                    assert at is not None
                    assert ours.shards == at.shards  # the frontiers say where batches were cut
                    continue
                for count in range(1, taken.rows + 1):
                    at = events[len(found) + count - 1].position
                    assert at is not None
                    assert taken.after(count).position().shards == at.shards
                for run, begin, after in taken.stretches:
                    found += run.events(begin, after)

    assert found[: len(events)] == events
