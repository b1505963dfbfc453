"""Which shards a read of a keyspace asks, also while they change, and what is proven of all."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from threading import Event
from typing import Any

import pytest

from caching.errors import NotServing
from caching.reading import fresh_reader, keyspace_reader
from caching.reading.connections import OpenConnection
from caching.reading.fresh_reader import FreshReader
from caching.reading.keyspace_reader import KeyspaceReader, ServingShards, merged
from caching.reading.own_writes import ReadYourWrites
from caching.reading.reader import FreshRows
from caching.reading.snapshots import ReadTransaction, ShardTime, Snapshots
from databases.errors import ServerLost
from databases.internal_tables import JOURNAL
from event_token import GtidSet, UsageError
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.protocol.tokens import token
from tests.caching.reading.marks import (
    HOP_US,
    OTHER_TARGET,
    SOURCE,
    TARGET,
    beat,
    mark,
    prepare,
)
from tests.caching.reading.reading import BEAT_US, WRITTEN, WRITTEN_US, allow_reads, by_pymysql, run
from tests.database_servers import DatabaseFixture
from tests.forks import WAIT_S_MAX, in_children
from tests.waiting import wait_for
from topics.errors import BrokersUnreachable
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace import topology as topologies
from topics.keyspace.topology import (
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
    update_topology,
)

LOW, HIGH = "-3a", "3c-"
# By row of the table t, the value of its sharding column: its first byte is that of its range.
ON = {1: 0x10 << 56, 2: 0x3A << 56, 3: 0x3B << 56, 4: 0xF0 << 56}
VINDEX = TableVindex("shop", "t", ("id",), "numeric")
OTHER_VINDEX = TableVindex("shop", "names", ("name",), "xxhash")
QUERY = "SELECT id FROM t"


def topology(
    keyspace: str, state: ReshardState, vindexes: tuple[TableVindex, ...] = (VINDEX,)
) -> Topology:
    """Four shards' worth of rows, before or after a split of the middle one."""
    is_over = state is not ReshardState.RUNNING
    old, new = ShardState.SERVING, ShardState.TARGET
    if is_over:
        old, new = ShardState.RETIRED, ShardState.SERVING
    return Topology(
        keyspace,
        int(is_over),
        (
            ShardEntry(OTHER_TARGET, new),
            ShardEntry(TARGET, new),
            ShardEntry(SOURCE, old),
            ShardEntry(LOW),
            ShardEntry(HIGH),
        ),
        vindexes,
        (
            ReshardEntry(
                "r1", (SOURCE,), (TARGET, OTHER_TARGET), state.value, HOP_US if is_over else None
            ),
        ),
    )


def test_a_row_is_of_the_shard_that_serves_its_keyspace_id() -> None:
    """Before and after a split, by the vindex that the topology has for its table."""
    before = ServingShards(topology("shop", ReshardState.RUNNING))
    after = ServingShards(topology("shop", ReshardState.SWITCHED))

    assert before.names == (LOW, SOURCE, HIGH)
    assert [before.of_row(on, None) for on in ON.values()] == [LOW, SOURCE, SOURCE, HIGH]
    assert after.names == (LOW, TARGET, OTHER_TARGET, HIGH)
    assert [after.of_row(on, "shop.t") for on in ON.values()] == [LOW, TARGET, OTHER_TARGET, HIGH]


def test_a_shard_that_is_not_clear() -> None:
    """Several vindexes, none, or a table without one: refused rather than guessed."""
    two = ServingShards(topology("shop", ReshardState.RUNNING, (VINDEX, OTHER_VINDEX)))
    none = ServingShards(topology("shop", ReshardState.RUNNING, ()))

    assert two.of_row(ON[4], "shop.t") == HIGH
    with pytest.raises(UsageError, match=r"numeric and xxhash, .* one of shop\.names, shop\.t"):
        two.of_row(ON[4], None)
    with pytest.raises(UsageError, match=r"shop\.x have no vindex"):
        two.of_row(ON[4], "shop.x")
    with pytest.raises(UsageError, match=r"its tables have no vindex"):
        none.of_row(ON[4], None)
    with pytest.raises(UsageError, match="numeric"):
        two.of_row("text", "shop.t")
    assert ServingShards(Topology("shop", 0, (ShardEntry("-"),))).of_row(7, None) == "-"
    alone = ServingShards(Topology("shop", 0, (ShardEntry("-"),), (VINDEX,)))
    assert alone.of_row(None, None) == "-"
    with pytest.raises(UsageError, match="numeric"):
        alone.of_row("text", None)


@pytest.mark.parametrize(
    ("state", "filled"),
    [
        (ReshardState.RUNNING, set()),
        (ReshardState.SWITCHED, {TARGET, OTHER_TARGET}),
        (ReshardState.COMPLETED, {TARGET, OTHER_TARGET}),
        (ReshardState.DECLARED, set()),
    ],
)
def test_only_the_targets_of_our_reshards_need_a_begin(
    state: ReshardState, filled: set[str]
) -> None:
    """Other tools leave none, so their shards would never be read."""
    assert ServingShards(topology("shop", state)).filled == filled


def rows(shard: str, at_ms: int | None, age_ms: float | None, *ids: int) -> FreshRows:
    """An answer of a shard, which is complete up to some milliseconds after WRITTEN."""
    complete_to = None if at_ms is None else WRITTEN + timedelta(milliseconds=at_ms)
    found, server = [(n,) for n in ids], "db-a:3306"
    return FreshRows(
        found, token(shard, 5, None), None, server, age_ms=age_ms, complete_to=complete_to
    )


def test_all_rows_are_as_fresh_as_the_oldest() -> None:
    """Times and ages are those of the oldest shard; one without makes that of all unknown."""
    low, high = rows("-80", 9, 1.5, 1, 2), rows("80-", 7, 4.0, 3)
    untimed = rows("80-", None, None, 3)

    found = merged({"-80": low, "80-": high})
    assert found.rows == [(1,), (2,), (3,)]
    assert found.tokens == {"-80": low.token, "80-": high.token}
    assert found.complete_to == WRITTEN + timedelta(milliseconds=7)
    assert found.age_ms == 4.0
    unknown = merged({"-80": low, "80-": untimed})
    assert (unknown.complete_to, unknown.age_ms) == (None, None)


class Answering:
    """Stands in for a FreshReader: its only server answers, or raises."""

    def __init__(
        self, _keyspace: str, shard: str, servers: Sequence[Callable[[], FreshRows]], **_: object
    ) -> None:
        self.shard = shard
        self._answer = servers[0]

    def execute(self, _sql: str, _args: Any, **_: object) -> FreshRows:
        return self._answer()

    def close(self) -> None:
        pass


MakeReader = Callable[[Callable[[], Topology], Callable[[str], FreshRows]], KeyspaceReader]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> MakeReader:
    """Make a reader whose looks and shards answer by functions; a look begins at every read."""

    def make(look: Callable[[], Topology], answer: Callable[[str], FreshRows]) -> KeyspaceReader:
        for module in (keyspace_reader, topologies):
            monkeypatch.setattr(module, "read_topology", lambda *_: look())
        monkeypatch.setattr(keyspace_reader, "FreshReader", Answering)
        monkeypatch.setattr(keyspace_reader, "WATCH_INTERVAL_S", 0.0)
        monkeypatch.setattr(keyspace_reader, "SWITCH_S_MAX", 0.0)
        kafka = ClientConfig({"bootstrap.servers": "nowhere:1"})
        return KeyspaceReader(kafka, "shop", lambda shard: [partial(answer, shard)], flavor="mysql")

    return make


def test_a_scatter_whose_shards_change_meanwhile_is_repeated(scripted: MakeReader) -> None:
    """As after a reshard by other tools, which leaves no END: the rows are of one topology."""
    now = topology("shop", ReshardState.RUNNING)

    def answer(shard: str) -> FreshRows:
        nonlocal now
        if shard == SOURCE:
            now = topology("shop", ReshardState.DECLARED)
            wait_for("the new shards are known", lambda: reader.shard_of(ON[2]) == TARGET)
            return rows(SOURCE, 1, 1, 2, 3)
        of = {LOW: 1, TARGET: 2, OTHER_TARGET: 3, HIGH: 4}
        return rows(shard, 1, 1, of[shard])

    reader = scripted(lambda: now, answer)

    assert reader.scatter(QUERY).rows == [(1,), (2,), (3,), (4,)]
    assert set(reader.scatter(QUERY).tokens) == {LOW, TARGET, OTHER_TARGET, HIGH}


def test_a_look_from_before_a_pause_is_not_gone_by(
    scripted: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of the same epoch as the look that was waited for, without its vindexes."""
    old, new = (
        topology("shop", ReshardState.RUNNING, vindexes)
        for vindexes in ((VINDEX,), (VINDEX, OTHER_VINDEX))
    )
    looks = count(1)
    reader = scripted(lambda: old if next(looks) <= 2 else new, lambda shard: rows(shard, 1, 1))
    reader.shard_of(ON[1])
    looking = reader._looks._looking
    assert looking is not None
    looking.join()
    monkeypatch.setattr(keyspace_reader, "IDLE_S_MAX", -1.0)

    assert reader.shard_of("Ada", table="shop.names") in (LOW, SOURCE, HIGH)


def test_a_fork_in_the_middle_of_a_look(
    scripted: MakeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that looks, and holds the reader's lock, is not in the child, which reads."""
    monkeypatch.setattr(keyspace_reader, "IDLE_S_MAX", -1.0)  # every read waits for a look
    parent, looks, may_end = os.getpid(), Event(), Event()

    def look() -> Topology:
        if os.getpid() == parent:
            looks.set()
            assert may_end.wait(WAIT_S_MAX)
        return topology("shop", ReshardState.RUNNING)

    reader = scripted(look, lambda shard: rows(shard, 1, 1))
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(reader.shard_of, ON[1])
        assert looks.wait(WAIT_S_MAX)
        in_children(lambda: reader.execute(QUERY, on=ON[1]))()
        may_end.set()
        assert looking.result() == LOW


def test_shards_that_change_at_each_attempt(scripted: MakeReader) -> None:
    """A read follows them a few times, not for ever."""
    epochs = count(1)

    def look() -> Topology:
        epoch = next(epochs)
        return Topology("shop", epoch, (ShardEntry(f"-.{epoch + 1}"),))

    def answer(_shard: str) -> FreshRows:
        raise NotServing("it has ended")

    with pytest.raises(NotServing, match="its shards changed 4 times"):
        scripted(look, answer).execute(QUERY, on=1)


def test_reads_without_brokers(scripted: MakeReader) -> None:
    """The known shards are read; a fault is raised as it is, and an END is waited out in vain."""
    looks = iter([topology("shop", ReshardState.RUNNING)])

    def look() -> Topology:
        for found in looks:
            return found
        raise BrokersUnreachable("no broker answers")

    def answer(shard: str) -> FreshRows:
        if shard == LOW:
            raise ServerLost("shop.-3a: no server answers")
        if shard == HIGH:
            raise NotServing("shop.3c-: db-a has its END")
        return rows(shard, 1, 1, 2)

    reader = scripted(look, answer)
    assert [reader.execute(QUERY, on=ON[2]).rows for _ in range(3)] == [[(2,)]] * 3
    with pytest.raises(ServerLost, match="no server answers"):
        reader.execute(QUERY, on=ON[1])
    with pytest.raises(NotServing, match=r"has its END, but the topology names no other after"):
        reader.execute(QUERY, on=ON[4])


def test_a_keyspace_that_cannot_be_read(scripted: MakeReader) -> None:
    """No broker has answered yet, and a shard whose servers the application does not know."""

    def away() -> Topology:
        raise BrokersUnreachable("no broker answers")

    with pytest.raises(BrokersUnreachable, match="no broker answers"):
        scripted(away, lambda shard: rows(shard, 1, 1)).execute(QUERY, on=1)
    scripted(lambda: topology("shop", ReshardState.RUNNING), lambda shard: rows(shard, 1, 1))
    kafka = ClientConfig({"bootstrap.servers": "nowhere:1"})
    known: dict[str, Any] = {}
    reader = KeyspaceReader(kafka, "shop", known.__getitem__, flavor="mysql")
    with pytest.raises(UsageError, match=r"shop\.3c-: `servers` does not know this shard"):
        reader.execute(QUERY, on=ON[4])


@dataclass
class Shown:
    """A connection to a server by its number, and its cursor; all that it answers is a version."""

    number: int
    description: str = "as of a query"

    def cursor(self) -> "Shown":
        return self

    def execute(self, statement: str) -> None:
        pass

    def fetchall(self) -> list[tuple[str]]:
        return [("9.7.0",)]

    def close(self) -> None:
        pass


class ShownTimes(Snapshots):
    """Servers that show these times: a replica, then the primary."""

    def __init__(self, *times: ShardTime | None) -> None:
        self.times = times

    def begin(self, opened: OpenConnection, times: str) -> ReadTransaction:
        del times
        number = opened.raw.number
        position = token(SOURCE, 5, None).position
        return ReadTransaction(f"db-{number}", number == 1, position, None, self.times[number])

    def wait(self, opened: OpenConnection, wanted: GtidSet, wait_s: float) -> None:
        raise NotImplementedError

    def filters(self, opened: OpenConnection) -> list[tuple[str, str]]:
        raise NotImplementedError

    def last_commit(self, opened: OpenConnection) -> tuple[GtidSet, int]:
        raise NotImplementedError


@pytest.mark.parametrize("behind", [ShardTime(0, 0, 0, 0, has_ended=True), None])
def test_a_replica_that_does_not_show_that_a_shard_serves(
    monkeypatch: pytest.MonkeyPatch, behind: ShardTime | None
) -> None:
    """It has END, but not yet CANCELLED, or not yet our tables: the primary is asked, and decides.

    With such a primary no server answers, and without one the replica's reason is told.
    """
    serving, ended = (ShardTime(0, 0, 0, 0, has_ended=each) for each in (False, True))
    told: dict[tuple[ShardTime | None, ...], str] = {
        (behind, serving): "",
        (behind, ended): "db-1 has its END",
        (behind, None): "db-1 does not show",
        (behind,): "db-0 has its END" if behind else "db-0 does not show",
    }
    for times, expected in told.items():
        shown = ShownTimes(*times)
        monkeypatch.setattr(fresh_reader, "snapshots_of", lambda _flavor, shown=shown: shown)
        connects = [partial(Shown, number) for number in range(len(times))]
        reader = FreshReader("shop", SOURCE, connects, flavor="mysql", was_target=False)
        if not expected:
            assert reader.execute(QUERY).is_primary
        else:
            with pytest.raises((NotServing, UsageError), match=expected):
                reader.execute(QUERY)


def test_reads_go_on_through_a_split(
    mysql_a: DatabaseFixture,
    mysql_b: DatabaseFixture,
    kafka: KafkaCluster,
    keyspace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source is left at its END, its targets are read from BEGIN on, by rows and by scatters."""
    config = ClientConfig({"bootstrap.servers": kafka.bootstrap_servers})
    provision_keyspace(config, keyspace)
    update_topology(config, keyspace, lambda _: topology(keyspace, ReshardState.RUNNING))
    places = {
        LOW: (mysql_a, (1,)),
        SOURCE: (mysql_a, (2, 3)),
        HIGH: (mysql_a, (4,)),
        TARGET: (mysql_b, (2,)),
        OTHER_TARGET: (mysql_b, (3,)),
    }
    names = {shard: prepare(database) for shard, (database, _) in places.items()}
    for shard, (database, ids) in places.items():
        run(database, *(f"INSERT INTO {names[shard]}.t VALUES ({n})" for n in ids))
    servers = {
        shard: [by_pymysql(database, init_command=f"USE {names[shard]}")]
        for shard, (database, _) in places.items()
    }
    session = ReadYourWrites()
    monkeypatch.setattr(keyspace_reader, "SWITCH_S_MAX", 0.0)
    with KeyspaceReader(config, keyspace, servers.__getitem__, flavor="mysql") as reader:
        untimed = reader.scatter(QUERY)
        assert (untimed.rows, untimed.complete_to) == ([(1,), (2,), (3,), (4,)], None)
        for shard, later_us in {LOW: 5, SOURCE: 0, HIGH: 9}.items():
            beat(mysql_a, keyspace, shard, BEAT_US, WRITTEN_US + later_us)
        found = reader.scatter(QUERY, at_least=WRITTEN)
        assert (list(found.tokens), found.complete_to) == ([LOW, SOURCE, HIGH], WRITTEN)
        assert reader.scatter(QUERY, at_least=found.complete_to).rows == found.rows
        with mysql_a.connect(database=names[SOURCE]) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (30)")
            connection.commit()
            session.wrote(reader.committed(connection, reader.shard_of(ON[3])))
        assert (30,) in reader.execute(QUERY, on=ON[3], at_least=session).rows
        [write] = session.tokens
        assert reader.execute(QUERY, on=ON[1], at_least=write).rows == [(1,)]

        mark(mysql_a, keyspace, "END")
        reads: list[Callable[[str], object]] = [partial(reader.execute, on=ON[3]), reader.scatter]
        for read in reads:
            with pytest.raises(NotServing, match=rf"{SOURCE}: .* has its END: a reshard"):
                read(QUERY)
        assert reader.execute(QUERY, on=ON[4]).rows == [(4,)]

        monkeypatch.setattr(keyspace_reader, "SWITCH_S_MAX", 60.0)
        run(mysql_b, f"INSERT INTO {names[OTHER_TARGET]}.t VALUES (30)")
        with ThreadPoolExecutor() as pool:
            row = pool.submit(reader.execute, QUERY, on=ON[3], at_least=session)
            scatter = pool.submit(reader.scatter, QUERY, at_least=session)
            mark(mysql_b, keyspace, "BEGIN", str(HOP_US))
            update_topology(config, keyspace, lambda _: topology(keyspace, ReshardState.SWITCHED))
        assert row.result().rows == [(3,), (30,)]
        assert scatter.result().rows == [(1,), (2,), (3,), (30,), (4,)]
        assert list(scatter.result().tokens) == [LOW, TARGET, OTHER_TARGET, HIGH]

        monkeypatch.setattr(keyspace_reader, "SWITCH_S_MAX", 0.0)
        run(mysql_b, f"DELETE FROM {JOURNAL} WHERE keyspace = '{keyspace}'")
        with pytest.raises(
            NotServing, match=rf"{OTHER_TARGET}: .* does not prove that it has the BEGIN"
        ):
            reader.execute(QUERY, on=ON[3])
    run(mysql_a, "REVOKE SELECT ON _shardstream.* FROM reader@'%'")
    try:
        with pytest.raises(UsageError, match=r"does not show whether the shard still serves"):
            reader.execute(QUERY, on=ON[1])
        problems = reader.check().problems
        assert [each.partition(" ")[0] for each in problems if "no time" in each] == [
            f"{keyspace}/{shard}" for shard in (LOW, HIGH)
        ]
    finally:
        reader.close()
        allow_reads(mysql_a, names[LOW])
