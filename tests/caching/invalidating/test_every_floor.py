"""What is a change of every bucket, and stores that come back older or not at all."""

import threading
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace

import pytest

from caching.errors import StoreUnreachable
from caching.stores.memory import MemoryFloors, MemoryStore
from caching.stores.store import Invalidated, KeyChange
from tests.caching.invalidating.invalidating import Client, invalidating, key_of
from tests.caching.stores.opened import RANGE, Opened, open_memory
from tests.topics.shard_writer import ShardWriter, Writers
from tests.topics.splits import SPLIT
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.progress.record import MarkKind
from topics.records.skip_record import Skip, SkipKind
from topics.records.statement_record import STATEMENT_SCHEMA_TEXT
from topics.records.vevent import EventType, Op, VEvent


@pytest.fixture
def memory() -> Opened:
    """A store in memory, whose nodes a test can reach."""
    return open_memory()


def statement(writer: ShardWriter, at_us: int, kind: EventType, text: str) -> VEvent:
    """Write a record without a row."""
    row = writer.row(at_us)
    event = replace(
        row, type=kind, op=Op.NONE, after=None, shape=None, statement=text, database="", table=""
    )
    if kind is EventType.SKIP:
        writer.schema_ids.register(STATEMENT_SCHEMA_TEXT)
    writer.commit_events([event])
    return event


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (EventType.DDL, "TRUNCATE TABLE shop.orders", "DDL on a mapped table"),
        (
            EventType.SKIP,
            Skip(SkipKind.TRANSACTION, "3e11fa47-71ca-11e1-9e33-c80aa9429562:2", "x").to_json(),
            "was skipped",
        ),
    ],
)
def test_ddl_and_skips_take_all_values_out_of_use(
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    cache: Opened,
    client: Client,
    kind: EventType,
    text: str,
    says: str,
) -> None:
    """R26, R28, H10: what DDL or a skipped transaction changed is not known: no value stays."""
    (writer,) = writers("-")
    writer.commit((0, 3))
    old = writer.written[0].token
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.make_floors("order:1", "order:2")
        assert client.fill("order:1", old)
        before = client.floor("order:2").generation
        done = statement(writer, 1_000, kind, text)

        wait_for("it is applied", lambda: running.says(says))
        assert not client.hit("order:1")
        assert client.floor("order:2").generation != before
        assert not client.fill("order:1", old)
        assert client.fill("order:1", done.token)


@pytest.mark.full
def test_a_split_closes_the_source_and_opens_the_targets(
    config: ClientConfig,
    keyspace: str,
    writers: Writers,
    targets: Writers,
    cache: Opened,
    client: Client,
) -> None:
    """R11, R12: after BEGIN readers left on the source fill nothing, those of targets at once."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    left.commit((0, 1))
    source.commit((0, 3))
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.make_floors(*(f"order:{n}" for n in range(1, 9)))
        assert client.fill("order:2", source.written[-1].token)
        assert client.fill("order:4", left.written[-1].token)
        low.commit((2_000, 4))  # copied rows: the cache does not hear of them
        source.mark(35_000, MarkKind.END, SPLIT)
        end = source.written[-1].token
        for target in (low, high):
            target.mark(42_000, MarkKind.BEGIN, SPLIT)
        wait_for(
            "the targets are in every floor",
            lambda: all(
                {"80-c0", "c0-"} <= client.floor(f"order:{n}").tokens.keys() for n in (2, 5)
            ),
        )

        assert not client.fill("order:5", end)
        assert client.fill("order:5", low.written[-1].token)
        assert client.hit("order:2")
        assert client.hit("order:4")
        low.commit((50_000, 1))
        client.make_floors(key_of(low.written[-1]))
        client.wait_applied(low.written[-1])
        assert "80-" not in client.floor(key_of(low.written[-1])).tokens
        running.wait_published()
    assert running.counters.generations_renewed == 0


@pytest.mark.full
def test_a_change_of_the_server_that_writes(
    config: ClientConfig, keyspace: str, writers: Writers, memory: Opened
) -> None:
    """A failover may have lost what values hold: they go, unless the settings keep them."""
    client = Client(memory)
    (writer,) = writers("-")
    writer.commit((0, 3))
    for keeps in (True, False):
        with invalidating(
            config, keyspace, memory.more_floors, renews_on_failover=not keeps
        ) as running:
            client.make_floors("order:1")
            writer.commit((writer.transactions * 1_000, 1))
            wait_for("it is read", lambda running=running: running.counters.changes >= 1)  # type: ignore[misc]
            assert client.fill("order:1", writer.written[-1].token)
            event = writer.row(writer.transactions * 1_000)
            gtid = f"00000000-0000-0000-0000-00000000000{int(keeps)}:1"
            writer.commit_events([replace(event, gtid=gtid)])
            client.make_floors(key_of(event))
            client.wait_applied(event)
            running.wait_published()

            assert running.says("another server") is not keeps
            assert client.hit("order:1") is keeps


@pytest.mark.full
def test_a_node_that_comes_back_older(
    config: ClientConfig, keyspace: str, writers: Writers, memory: Opened
) -> None:
    """H7: invalidations that a restored snapshot lacks are applied again, from its position on."""
    client, store = Client(memory), memory.raw
    assert isinstance(store, MemoryStore)
    (writer,) = writers("-")
    writer.commit((0, 1))
    old = writer.written[0].token
    with invalidating(config, keyspace, memory.more_floors) as running:
        client.make_floors(*(f"order:{n}" for n in range(1, 9)))
        for n in range(2, 6):
            assert client.fill(f"order:{n}", old)
        running.wait_published()
        with store.lock:
            saved = deepcopy(store.memory)
        writer.commit((1_000, 4))
        client.wait_applied(*writer.written)
        running.wait_published()
        for name, node in saved.items():  # one node, then the other one
            with store.lock:
                node.connections = store.memory[name].connections + 1
                store.memory[name] = node
            client.wait_applied(*writer.written)

        assert not any(client.hit(f"order:{n}") for n in range(2, 6))
        assert running.counters.store_rewinds > 0
        assert running.counters.generations_renewed == 0


def test_one_flushed_node_of_two(
    config: ClientConfig, keyspace: str, writers: Writers, memory: Opened
) -> None:
    """H4: the node that lost its data gets new generations, the other one keeps its values."""
    client, store = Client(memory), memory.raw
    assert isinstance(store, MemoryStore)
    (writer,) = writers("-")
    writer.commit((0, 1))
    keys = [f"order:{n}" for n in range(1, 9)]
    with invalidating(config, keyspace, memory.more_floors) as running:
        client.make_floors(*keys)
        assert all(client.fill(key, writer.written[0].token) for key in keys)
        floor = {key: client.floor(key).generation for key in keys}
        node = store.memory["a"]
        with store.lock:
            node.positions.clear()  # its floors stay: what they missed is not known
        wait_for("it has a position again", lambda: RANGE in store.memory["a"].positions)
        running.wait_published()

    on_a = {key for key in keys if store.node_of(store.layout.bucket(key)) == "a"}
    assert on_a
    assert on_a != set(keys)
    assert {key for key in keys if client.floor(key).generation != floor[key]} == on_a
    assert {key for key in keys if client.hit(key)} == set(keys) - on_a


class _Failing(MemoryFloors):
    """A store whose invalidations fail for a while."""

    down = threading.Event()

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Do it, or do not answer."""
        if self.down.is_set():
            raise StoreUnreachable("a", "cache node a: no answer")
        return super().invalidate(changes)


def test_a_store_that_is_down_is_waited_for(
    config: ClientConfig, keyspace: str, writers: Writers, memory: Opened
) -> None:
    """R18: the position stays where it is, and every change is applied once the store answers."""
    client, store = Client(memory), memory.raw
    assert isinstance(store, MemoryStore)
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, lambda: _Failing(store)) as running:
        client.make_floors(*(f"order:{n}" for n in range(1, 9)))
        _Failing.down.set()
        try:
            writer.commit((1_000, 3))
            wait_for("it waits", lambda: running.state == "waiting")
            stored = store.memory["a"].positions[RANGE]
            assert running.says("cache node a: no answer")
            assert client.fill("order:8", writer.written[0].token)
        finally:
            _Failing.down.clear()
        client.wait_applied(*writer.written)
        wait_for("the position moves", lambda: store.memory["a"].positions[RANGE] != stored)
        wait_for("it says so", lambda: running.state == "running")
