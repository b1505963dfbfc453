"""The invalidator on every kind of store, with logs as producers write them."""

import math
from typing import NoReturn

import pytest

from caching.errors import StoreFull
from caching.invalidating.log import StartAt
from caching.stores.memory import MemoryStore
from tests.caching.invalidating.invalidating import (
    Client,
    RunningInvalidator,
    invalidating,
    key_of,
    on_each_store,
)
from tests.caching.stores.opened import RANGE, TTL_MS, Opened
from tests.topics.shard_writer import TIMEOUT_S, ShardWriter, Writers
from tests.waiting import wait_for
from topics import named_readers
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_readers
from topics.named_readers import ReaderKind, not_passed, read_readers
from topics.start.positions import known_topology


@on_each_store
def test_a_change_removes_the_value_and_keeps_old_reads_out(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R01: after the change of a row neither its value nor a read from before it gets back in."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    old = writer.written[0].token
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:2", "order:9")
        assert client.fill("order:2", old)
        assert client.fill("order:9", old)
        writer.commit((1_000, 1))
        client.wait_applied(writer.written[1])

        # On memcached the floor is raised before the value goes.
        wait_for("the value goes", lambda: not client.hit("order:2"))
        assert not client.fill("order:2", old)
        assert client.hit("order:9")
        assert client.fill("order:2", writer.written[1].token)
        assert client.hit("order:2")


@pytest.fixture
def writer(
    config: ClientConfig, keyspace: str, writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> ShardWriter:
    """Writes a shard with one change; readers report at their end, however long it takes."""
    monkeypatch.setattr(named_readers, "CLOSE_S_MAX", TIMEOUT_S)
    (made,) = writers("-")
    provision_readers(config, keyspace)
    made.commit((0, 1))
    return made


def test_a_named_invalidator_is_a_reader_like_others(
    config: ClientConfig,
    keyspace: str,
    writer: ShardWriter,
    cache: Opened,
    client: Client,
) -> None:
    """Its name has the place behind what it has applied, so that `topology retire` waits for it."""
    with invalidating(config, keyspace, cache.more_floors, name="pages") as running:
        client.make_floors("order:1", "order:2", "order:3")
        writer.commit((1_000, 2))
        client.wait_applied(*writer.written[1:])
        running.wait_published()

    [reader] = read_readers(config, keyspace)
    assert reader.last.kind == ReaderKind.CACHE.value
    assert (reader.last.name, str(reader.last.key_range)) == ("pages", "-")
    assert reader.last.position.shards["-"].seq == writer.written[-1].seq
    assert not_passed([reader], known_topology(config, keyspace), "-") == (reader.last,)


def test_a_full_store_is_no_progress_of_a_named_invalidator(
    config: ClientConfig,
    keyspace: str,
    writer: ShardWriter,
    cache: Opened,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A position that no node has stored is not reported: a restart begins before it."""
    floors = cache.more_floors()
    with invalidating(config, keyspace, lambda: floors, name="pages") as running:
        client.make_floors("order:1", "order:2", "order:3")

        def publish(*_: object) -> NoReturn:
            raise StoreFull("a", "no memory")

        monkeypatch.setattr(floors, "publish", publish)
        wait_for("the store is full", lambda: running.says("the position was not stored"))
        writer.commit((1_000, 2))
        client.wait_applied(*writer.written[1:])
        running.wait_told(2)

    [reader] = read_readers(config, keyspace)
    assert reader.last.position.shards["-"].seq < writer.written[1].seq


def test_the_loser_of_the_lease_reports_no_more(
    config: ClientConfig,
    keyspace: str,
    writer: ShardWriter,
    cache: Opened,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever has the lease reports under the name: an older place would come after its places."""
    monkeypatch.setattr(named_readers, "REPORT_S", 3_600)  # one report, and that of the end
    assert isinstance(cache.raw, MemoryStore)
    node = cache.raw.memory[cache.store.nodes[0]]
    options = {"lease_ms": TTL_MS, "name": "pages"}
    with invalidating(config, keyspace, cache.more_floors, **options) as running:
        client.make_floors("order:1", "order:2", "order:3")
        wait_for("it has reported", lambda: bool(read_readers(config, keyspace)))
        writer.commit((1_000, 2))
        client.wait_applied(*writer.written[1:])
        running.wait_published()
        node.leases[RANGE] = (b"another one", math.inf)
        wait_for("it stands by", lambda: running.state == "standby")

    [reader] = read_readers(config, keyspace)
    assert reader.last.position.shards["-"].seq < writer.written[1].seq


@pytest.mark.full
def test_floors_are_made_at_the_ends_of_the_logs(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R22, H5: a floor that is missing is made at the ends of all logs, whoever makes it."""
    left, right = writers("-80", "80-")
    left.commit((0, 1), (1_000, 2))
    right.commit((0, 2))
    for writer in (left, right):
        writer.wait_committed()
    with invalidating(config, keyspace, cache.more_floors, key_range="-80"):
        client.make_floors("order:1")
        tokens = client.floor("order:1").tokens

        assert {shard: str(each.position) for shard, each in tokens.items()} == {
            shard: str(writer.written[-1].token.position)
            for shard, writer in (("-80", left), ("80-", right))
        }
        assert not client.fill("order:1", left.written[0].token)
        assert client.fill("order:1", left.written[-1].token, right.written[-1].token)


@pytest.mark.full
@on_each_store
def test_a_flushed_store_is_closed_until_its_floors_are_made(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R22: what was read before a flush does not get back in after it, and the cache goes on."""
    (writer,) = writers("-")
    writer.commit((0, 1), (1_000, 1))
    writer.wait_committed()
    old, new = (event.token for event in writer.written)
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.make_floors("order:1")
        assert client.fill("order:1", new)
        cache.flush()
        client.make_floors("order:1")

        assert not client.fill("order:1", old)
        assert client.fill("order:1", new)
        running.wait_published()
        assert all(cache.store.position(node, RANGE) for node in cache.store.nodes)
        assert running.counters.floors_made > 0
        writer.commit((2_000, 1))
        client.make_floors("order:3")
        client.wait_applied(writer.written[2])


@pytest.mark.full
@on_each_store
def test_a_new_connection_reads_the_position_back(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """H7: after its connections were cut the invalidator goes on, and nothing is left out."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.make_floors(*(f"order:{n}" for n in range(1, 60)))
        for n in range(8):
            writer.commit((n * 1_000, 5))
            if n % 3 == 0:
                cache.disconnect()
        client.wait_applied(*writer.written)
        assert running.says("a new connection")
        assert not any(status.note.startswith("64 node") for status in running.told[5:])


@pytest.mark.full
def test_a_restart_ten_seconds_back(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R10: changes that are applied again lower no floor and remove no newer value."""
    (writer,) = writers("-")
    for n in range(5):
        writer.commit((n * 1_000_000, 1))
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:6")
        writer.commit((6_000_000, 1))
        client.wait_applied(writer.written[5])
    assert client.fill("order:6", writer.written[5].token)
    before = client.floor("order:6")
    writer.commit((7_000_000, 1))

    with invalidating(config, keyspace, cache.more_floors, start=10) as running:
        wait_for("the changes are read", lambda: running.counters.changes >= 1)
        client.make_floors("order:7")
        client.wait_applied(writer.written[6])

        assert client.hit("order:6")
        assert client.floor("order:6").generation == before.generation


def test_a_change_while_no_invalidator_runs(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """H3: the next invalidator starts at the stored position, so a gap is not possible."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:2")
        assert client.fill("order:2", writer.written[0].token)
    writer.commit((1_000, 1))
    assert client.hit("order:2")
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.wait_applied(writer.written[1])

        assert not client.hit("order:2")
        assert running.counters.generations_renewed == 0


@pytest.mark.full
def test_a_start_at_the_latest_place_takes_all_values_out_of_use(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """H3: an operator who leaves a gap gets an empty cache, not a wrong one, and is told."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:2")
        assert client.fill("order:2", writer.written[0].token)
    writer.commit((1_000, 1))
    writer.wait_committed()
    with invalidating(config, keyspace, cache.more_floors, start=StartAt.LATEST) as running:
        assert running.says("floors got new generations")
        assert not client.hit("order:2")
        assert not client.fill("order:2", writer.written[0].token)
        assert client.fill("order:2", writer.written[1].token)


@pytest.mark.full
def test_a_position_that_retention_has_overtaken(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R18: when the logs no longer reach back to the position, all values are taken out of use."""
    (writer,) = writers("-")
    writer.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors):
        client.make_floors("order:1")
        assert client.fill("order:1", writer.written[0].token)
    for n in range(1, 4):
        writer.commit((n * 20_000, 2))
    writer.remove_until(writer.rows_end - 1)

    with invalidating(config, keyspace, cache.more_floors) as running:
        wait_for("new generations", lambda: running.says("floors got new generations"))
        assert running.says("retention has removed")
        assert not client.hit("order:1")
        assert client.fill("order:1", writer.written[-1].token)
        writer.commit((90_000, 1))
        client.make_floors(key_of(writer.written[-1]))
        client.wait_applied(writer.written[-1])


@pytest.mark.full
def test_a_dead_shard_delays_no_other(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R18: while a shard's producer is dead, changes of the other shard are applied at once."""
    dead, living = writers("-80", "80-")
    dead.commit((0, 1))
    living.commit((0, 1))
    with invalidating(config, keyspace, cache.more_floors) as running:
        client.make_floors(*(f"order:{n}" for n in range(1, 9)))
        for n in range(1, 4):
            living.commit((n * 60_000_000, 2))
            client.wait_applied(*living.written)
        running.wait_published()
        assert running.told[-1].oldest_shard == "-80"
        dead.commit((1_000, 2))
        client.wait_applied(*dead.written[1:])


@pytest.mark.full
def test_two_at_once(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """R08: two invalidators of one range, one of them an hour behind: floors never fall."""
    (writer,) = writers("-")
    for n in range(6):
        writer.commit((n * 1_000, 2))
    with invalidating(config, keyspace, cache.more_floors) as first:
        client.make_floors(*(f"order:{n}" for n in range(1, 30)))
        newest = writer.written[-1].token
        assert client.fill("order:3", newest)
        back = RunningInvalidator(config, keyspace, cache.more_floors, start=3_600 * 24 * 365 * 50)
        try:
            wait_for("the other one has read", lambda: back.counters.changes >= 12)
            back.check()
            assert client.hit("order:3")
            assert not client.fill("order:3", writer.written[0].token)
            writer.commit((9_000, 4))
            client.wait_applied(*writer.written)
            first.wait_published()
            back.wait_published()
        finally:
            back.end()


@pytest.mark.full
def test_the_lease_spares_double_work(
    config: ClientConfig, keyspace: str, writers: Writers, cache: Opened, client: Client
) -> None:
    """A second invalidator stands by, and takes over from the first one's position."""
    assert isinstance(cache.raw, MemoryStore)
    nodes = cache.raw.memory.values()
    (writer,) = writers("-")
    writer.commit((0, 1))
    standby = None
    try:
        with invalidating(config, keyspace, cache.more_floors, lease_ms=TTL_MS) as first:
            client.make_floors("order:2", "order:3")
            standby = RunningInvalidator(config, keyspace, cache.more_floors, lease_ms=TTL_MS)
            wait_for("it stands by", lambda: standby.state == "standby")
            writer.commit((1_000, 1))
            client.wait_applied(writer.written[1])
            assert first.state == "running"
            assert standby.counters.changes == 0
        for node in nodes:
            node.leases.clear()  # as their time does
        writer.commit((2_000, 1))
        client.wait_applied(writer.written[2])
        assert standby.counters.generations_renewed == 0
    finally:
        if standby is not None:
            standby.end()
