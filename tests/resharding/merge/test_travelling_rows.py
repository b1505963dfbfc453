"""A merge on real servers, of rows that travel between its sources against the order of clocks."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from event_token.errors import UsageError
from resharding.apply import applier
from resharding.apply.applier import ApplierSettings
from resharding.errors import DefinitionChanged
from resharding.progress import TargetProgress, target_state
from resharding.switch import opening
from resharding.switch.decision import SwitchStep
from resharding.switch.executor import run_switch
from resharding.verification import VerifiedTarget, VerifySettings, verify_target
from shardstream.local.kafka_cluster import KafkaCluster
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import read_log
from tests.resharding.accounts import resharder_of
from tests.resharding.merge.served_history import users_of
from tests.resharding.shards import RunningApplier, applying
from tests.resharding.switchable import Switchable, split
from tests.waiting import wait_for
from topics.keyspace.topology import read_topology
from topics.records.vevent import Op

A, B, TARGET = "-80", "80-", "-"
ROWS = 8
# On a busy machine, too, a row is back by then.
AHEAD_MS = 800
COLUMNS = "id BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, uid INT NOT NULL UNIQUE, n INT NOT NULL"
[USER_A, *_], [USER_B, *_] = users_of((A, B))


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def is_early_in_a_second() -> bool:
    """Whether what follows has the same commit time on MariaDB, which has whole seconds."""
    return time.time() % 1 < 0.3


class Merge:
    """A merge of two sources, and what is written to them."""

    def __init__(self, world: Switchable) -> None:
        self.world = world

    def write(self, shard: str, *sql: str, ahead_ms: int = 0) -> None:
        """Commit statements, on MySQL by a clock that is so far ahead."""
        database = self.world.servers[shard]
        with database.connect(database=self.world.schema) as connection:
            cursor = connection.cursor()
            if ahead_ms and database.flavor.value == "mysql":
                stamp = f"(UNIX_TIMESTAMP(SYSDATE(6)) + {ahead_ms / 1_000}) * 1000000"
                cursor.execute(f"SET SESSION original_commit_timestamp = CAST({stamp} AS UNSIGNED)")
            for statement in sql:
                cursor.execute(statement)

    def rows(self, *shards: str) -> list[tuple[int, ...]]:
        """All rows of some shards."""
        found: list[tuple[int, ...]] = []
        for shard in shards:
            with self.world.servers[shard].connect(database=self.world.schema) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT * FROM t")
                found += cursor.fetchall()
        return sorted(found)

    def verify(self) -> VerifiedTarget:
        """Compare the target with its sources, and keep the result for `switch`."""
        world = self.world
        servers = {shard: resharder_of(world.servers[shard], shard) for shard in world.servers}
        sources = {shard: servers[shard] for shard in (A, B)}
        settings = VerifySettings(world.plan, servers[TARGET], sources, world.sources.kafka)
        return verify_target(settings)

    def status(self) -> TargetProgress:
        """What `reshard status` says of the target."""
        world = self.world
        topology = read_topology(world.settings.kafka, world.settings.keyspace)
        assert topology is not None
        server = resharder_of(world.servers[TARGET], TARGET)
        return target_state(topology, server, world.settings.accounts, world.plan.reshard_id)

    def at_target(self, query: str) -> list[tuple[Any, ...]]:
        """The answer of the target's server."""
        with self.world.servers[TARGET].connect(database=self.world.schema) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())


@contextmanager
def merging(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str, *, appliers: bool = True
) -> Iterator[Merge]:
    """Yield a merge."""
    with split(
        servers,
        kafka,
        keyspace,
        appliers=appliers,
        from_shards=(A, B),
        to_shards=(TARGET,),
        columns=COLUMNS,
        sharded_by="user_id",
    ) as world:
        yield Merge(world)


def there_and_back(merge: Merge, i: int) -> None:
    """A row moves to the other shard and back: the log has B's insert behind A's second one."""
    merge.write(A, f"DELETE FROM t WHERE uid = {i}")
    merge.write(B, f"INSERT INTO t VALUES ({i}, {USER_B}, {i}, 2)", ahead_ms=AHEAD_MS)
    merge.write(B, f"DELETE FROM t WHERE id = {i}", ahead_ms=AHEAD_MS)
    merge.write(A, f"INSERT INTO t VALUES ({i}, {USER_A}, {i}, 3)")


def one_move(merge: Merge, i: int) -> None:
    """A row changes and moves: the log has B's update behind the insert that followed on A."""
    merge.write(A, f"DELETE FROM t WHERE uid = {i}")
    merge.write(B, f"INSERT INTO t VALUES ({i}, {USER_B}, {i}, 2)")
    merge.world.wait_applied()
    merge.write(B, f"UPDATE t SET n = n + 1 WHERE id = {i}", ahead_ms=AHEAD_MS)
    merge.write(B, f"DELETE FROM t WHERE id = {i}", ahead_ms=AHEAD_MS)
    merge.write(A, f"INSERT INTO t VALUES ({i}, {USER_A}, {i}, 4)")


def a_value_travels(merge: Merge, i: int) -> None:
    """A unique value goes from row to row and back, and the rows stay where they are."""
    merge.write(A, f"DELETE FROM t WHERE uid = {i}")
    merge.write(B, f"INSERT INTO t VALUES ({100 + i}, {USER_B}, {i}, 2)", ahead_ms=AHEAD_MS)
    merge.write(B, f"DELETE FROM t WHERE id = {100 + i}", ahead_ms=AHEAD_MS)
    merge.write(A, f"INSERT INTO t VALUES ({200 + i}, {USER_A}, {i}, 3)")


@pytest.mark.full
@pytest.mark.parametrize("family", ["servers", "mariadb_servers"])
@pytest.mark.parametrize(
    ("travel", "one_by_one"),
    [(there_and_back, False), (there_and_back, True), (one_move, True), (a_value_travels, True)],
)
def test_rows_that_travel(
    *,
    family: str,
    travel: Callable[[Merge, int], None],
    one_by_one: bool,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F25: All are on the target that `switch` opens, however its transactions are cut.

    A comparison counts no more once a row was set aside. In the target's log, what waited is a
    change of its own source, by its origin.
    """
    if one_by_one:
        monkeypatch.setattr(applier, "COMMIT_ROWS", 1)
    with merging(request.getfixturevalue(family), kafka, keyspace) as merge:
        world = merge.world
        for i in range(ROWS):
            merge.write(A, f"INSERT INTO t VALUES ({i}, {USER_A}, {i}, 1)")
        world.wait_applied()
        assert merge.verify().differing == 0
        travelled = 0
        # A busy machine may need more tries until one comes back in time.
        while travelled < ROWS or (one_by_one and not merge.status().verify_is_old):
            wait_for("a second begins", is_early_in_a_second)
            travel(merge, travelled % ROWS)
            travelled += 1
            if travelled % ROWS == 0:
                world.wait_applied()

        assert merge.rows(TARGET) == merge.rows(A, B)
        assert len(merge.rows(TARGET)) == ROWS
        if one_by_one:
            with pytest.raises(UsageError, match="rows were set aside since verify compared"):
                run_switch(world.settings, nothing)
        found = merge.verify()
        assert (found.rows, found.differing, found.aside) == (ROWS, 0, 0)
        assert run_switch(world.settings, nothing).stopped_ms is not None
        assert merge.rows(TARGET) == merge.rows(A, B)
        log = read_log(world.producers[TARGET].settings)
        changed = [event for event in log.events if event.op in {Op.INSERT, Op.DELETE}]
        assert changed
        assert {
            (event.token_text.origin and event.token_text.origin.shard, image["user_id"])
            for event in changed
            if (image := event.after or event.before) is not None
        } <= {(A, USER_A), (B, USER_B)}


@pytest.mark.parametrize(
    "family", ["servers", pytest.param("mariadb_servers", marks=pytest.mark.full)]
)
def test_sources_that_hold_the_same_value(
    family: str,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The row that cannot be on the target waits aside, is compared, counted, and named.

    `switch` does not stop writes for it. It comes back once the sources have resolved it.
    """
    with merging(request.getfixturevalue(family), kafka, keyspace) as merge:
        world = merge.world
        merge.write(A, f"INSERT INTO t VALUES (1, {USER_A}, 7, 1)")
        world.wait_applied()
        merge.write(B, f"INSERT INTO t VALUES (2, {USER_B}, 7, 1)")
        world.wait_applied()

        found = merge.verify()
        assert (found.rows, found.differing, found.aside) == (2, 0, 1)
        assert merge.status().aside == 1
        patience_s = opening.READY_S_MAX
        monkeypatch.setattr(opening, "READY_S_MAX", 1.0)
        with pytest.raises(UsageError) as refused:
            run_switch(world.settings, nothing)
        assert f"{world.schema}.t, id=2, of shard {B}" in str(refused.value)
        assert "Duplicate entry '7' for key" in str(refused.value)
        assert "stopped" not in str(refused.value)
        monkeypatch.setattr(opening, "READY_S_MAX", patience_s)
        merge.at_target(
            "UPDATE _shardstream.aside SET row_values = REPLACE(row_values, ', 1)', ', 3)')"
        )
        broken = merge.verify()
        assert [(d.key, d.what) for d in broken.named] == [("id=2", "it differs in n")]

        merge.write(A, "DELETE FROM t WHERE id = 1")
        merge.write(B, "UPDATE t SET n = 5 WHERE id = 2")
        world.wait_applied()
        assert merge.rows(TARGET) == merge.rows(A, B) == [(2, USER_B, 7, 5)]
        assert merge.verify().differing == 0
        assert merge.status().aside == 0


@pytest.mark.full
@pytest.mark.parametrize("family", ["servers", "mariadb_servers"])
@pytest.mark.parametrize("statement", ["TRUNCATE t", "DROP TABLE t"])
def test_a_source_without_its_table(
    family: str,
    statement: str,
    kafka: KafkaCluster,
    keyspace: str,
    request: pytest.FixtureRequest,
) -> None:
    """TRUNCATE and DROP, once accepted, remove the rows of their source, those aside too."""
    with ExitStack() as stack:
        merge = stack.enter_context(
            merging(request.getfixturevalue(family), kafka, keyspace, appliers=False)
        )
        world = merge.world
        merge.write(A, f"INSERT INTO t VALUES (1, {USER_A}, 1, 1), (2, {USER_A}, 2, 1)")
        merge.write(B, f"INSERT INTO t VALUES (3, {USER_B}, 1, 1), (4, {USER_B}, 4, 1)")
        wait_for("a second begins", is_early_in_a_second)
        wait_for("it is over", lambda: not is_early_in_a_second())
        wait_for("a second begins", is_early_in_a_second)
        merge.write(A, f"INSERT INTO t VALUES (5, {USER_A}, 4, 1)")
        merge.write(A, f"USE {world.schema}", statement)
        server = resharder_of(world.servers[TARGET], TARGET)
        settings = ApplierSettings(world.plan, server, world.sources.kafka)

        stopped = RunningApplier(settings).wait_error()

        assert isinstance(stopped, DefinitionChanged)
        assert "Leave the targets as they are" in str(stopped)
        assert merge.status().aside > 0
        gtid = str(stopped).partition("--accept-ddl ")[2].partition(": then")[0]
        accepting = ApplierSettings(
            world.plan, server, world.sources.kafka, accepted_ddl=frozenset((gtid,))
        )
        stack.enter_context(applying(accepting))
        wait_for("it has passed the statement", lambda: merge.status().aside == 0)
        world.wait_applied()
        assert merge.rows(TARGET) == merge.rows(B)
