"""A reader of a keyspace reads while its session writes and a shard is split under both."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pymysql
import pytest

from caching.errors import NotServing
from caching.reading.fresh_reader import FreshReader
from caching.reading.keyspace_reader import KeyspaceReader
from caching.reading.own_writes import ReadYourWrites
from producers.session.heads import HeartbeatWriter
from resharding.switch.decision import SwitchStep
from resharding.switch.executor import run_switch
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.reading.reading import allow_reads, by_pymysql
from tests.database_servers import StartServer
from tests.producers.servers.replication import follow, statements, wait_same
from tests.producers.session.producing import settings_alone
from tests.resharding.accounts import grant_internal_tables
from tests.resharding.switchable import SOURCE, TARGETS, Switchable, app_session, split
from tests.waiting import wait_for

pytestmark = pytest.mark.full

FIRST = 1_000
# MariaDB's times are whole seconds, so an own write is proven across the split a second later.
WAIT_S = 10.0
LOW = TARGETS[0]


class ReadingWriter(threading.Thread):
    """Inserts users, and reads after each what its session has written.

    `seen`: how many reads came from shards and servers; `error`: what ended it.
    """

    def __init__(self, world: Switchable, reader: KeyspaceReader) -> None:
        super().__init__(name="reading writer")
        self.world, self.reader = world, reader
        self.session = ReadYourWrites()
        self.written: list[int] = []
        self.seen: Counter[tuple[str, bool]] = Counter()
        self.error: BaseException | None = None
        self.ending = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self._write(FIRST + len(self.written))
                self._read()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self.error = error

    def _write(self, user: int) -> None:
        """Insert where the topology says, until a shard takes it."""
        insert = f"INSERT IGNORE INTO {self.world.schema}.t VALUES ({user})"
        while not self.ending.is_set():
            shard = self.reader.shard_of(user)
            try:
                with app_session(self.world.servers[shard]) as connection:
                    connection.cursor().execute(insert)
                    token = self.reader.committed(connection, shard)
            except pymysql.err.MySQLError:
                continue  # writes are stopped, or the session was ended
            self.session.wrote(token)
            self.written.append(user)
            return

    def _read(self) -> None:
        user, table = self.written[-1], f"{self.world.schema}.t"
        count = f"SELECT COUNT(*) FROM {table} WHERE id = %s"
        own = self.reader.execute(count, (user,), on=user, at_least=self.session, wait_s=WAIT_S)
        assert own.rows == [(1,)]
        assert own.token is not None
        self.seen[own.token.shard, own.is_primary] += 1
        if len(self.written) % 5:
            return
        all_users = f"SELECT id FROM {table} WHERE id >= {FIRST}"
        found = self.reader.scatter(all_users, at_least=self.session, wait_s=WAIT_S)
        assert sorted(found.rows) == [(each,) for each in self.written]
        assert set(found.tokens) in ({SOURCE}, set(TARGETS))

    def wait_read(self, shard: str, *, is_primary: bool) -> None:
        """Wait until it has read from that shard, or raise what has ended it."""

        def has_read() -> bool:
            if self.error is not None:
                raise self.error
            return self.seen[shard, is_primary] > 0

        wait_for(f"{shard} was read (primary: {is_primary})", has_read)


@contextmanager
def beating(world: Switchable) -> Iterator[None]:
    """Write the heartbeat rows of all shards, as their producers do."""
    with ExitStack() as stack:
        for shard, server in world.servers.items():
            grant_internal_tables(server)
            settings = settings_alone(
                server,
                keyspace=world.settings.keyspace,
                shard=shard,
                heartbeat_rows="always",
                heartbeat_ms=50,
            )
            stack.callback(HeartbeatWriter(settings, lambda: False).close)
        yield


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def test_reads_hold_own_writes_through_a_switch(
    start_mariadb: StartServer, kafka: KafkaCluster, keyspace: str
) -> None:
    """Every read holds what its session has written, on the source, and on a target's servers.

    A replica of a target that lacks its BEGIN answers nothing, and all others do by the documented
    grants of the account.
    """
    *servers, replica = start_mariadb.together(4)
    follow(replica, servers[1])
    with split(servers, kafka, keyspace) as world, beating(world):
        for server in servers:
            allow_reads(server, world.schema)
        wait_same(replica, servers[1])
        connects: dict[str, list[Any]] = {
            shard: [by_pymysql(server)] for shard, server in world.servers.items()
        }
        connects[LOW].insert(0, by_pymysql(replica))
        alone = partial(FreshReader, keyspace, LOW, connects[LOW][:1], flavor=replica.flavor)
        with KeyspaceReader(
            world.settings.kafka, keyspace, connects.__getitem__, flavor=replica.flavor
        ) as reader:
            writer = ReadingWriter(world, reader)
            try:
                writer.wait_read(SOURCE, is_primary=True)
                statements(replica, "STOP SLAVE SQL_THREAD")
                world.wait_applied()
                world.verified(0)
                run_switch(world.settings, nothing)
                for target in TARGETS:
                    writer.wait_read(target, is_primary=True)
                assert not writer.seen[LOW, False]
                with alone(was_target=True) as lagging, pytest.raises(NotServing, match="BEGIN"):
                    lagging.execute("SELECT 1")
                statements(replica, "START SLAVE SQL_THREAD")
                writer.wait_read(LOW, is_primary=False)
            finally:
                writer.ending.set()
                writer.join()
            aged = reader.scatter(f"SELECT id FROM {world.schema}.t", max_age_ms=60_000)
            assert aged.age_ms is not None
            assert {(user,) for user in writer.written} <= set(aged.rows)
        if writer.error is not None:
            raise writer.error
