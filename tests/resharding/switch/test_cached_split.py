"""A shard is split under a cache, its invalidator, and a session whose writes are in a cookie."""

from collections.abc import Iterable, Mapping

import pytest

from caching.client.cache import CacheClient
from caching.client.options import CacheOptions
from caching.key_map import KeyMap
from caching.reading.fresh_reader import FreshReader
from caching.reading.keyspace_reader import KeyspaceReader
from caching.reading.own_writes import ReadYourWrites
from databases.internal_tables import create_internal_tables
from resharding.switch.decision import SwitchStep
from resharding.switch.executor import run_switch
from shardstream.local.kafka_cluster import KafkaCluster
from tests.caching.invalidating.invalidating import invalidating
from tests.caching.stores.opened import open_memory
from tests.database_servers import DatabaseFixture
from tests.resharding.switchable import SOURCE, TARGETS, Switchable, app_session, split
from tests.waiting import wait_for
from topics.keyspace.vindexes import vindex_named

pytestmark = pytest.mark.full

USERS = range(95, 104)
KEYS = [f"user:{user}" for user in USERS]
# Not there at first; the session inserts the first on the source, the second on a target.
FIRST_NEW, SECOND_NEW = 101, 102


class CachedUsers:
    """How many rows a user has (0 or 1), through caches on one store.

    `following` has the reader of the keyspace, `cache` those of shards that `follow` names.
    """

    def __init__(self, world: Switchable) -> None:
        self.world = world
        self.opened = open_memory()
        self.readers: Mapping[str, FreshReader] = self.reading((SOURCE,))
        self.cache = CacheClient(self.opened.raw, self.readers, CacheOptions(lease_ms=0))
        for server in world.servers.values():
            with server.connect() as connection:
                create_internal_tables(connection)
        settings = world.settings
        self.keyspace_reader = KeyspaceReader(
            settings.kafka,
            settings.keyspace,
            lambda shard: [world.servers[shard].connect],
            flavor=world.servers[SOURCE].flavor,
        )
        self.following = CacheClient(
            self.opened.raw, self.keyspace_reader, CacheOptions(lease_ms=0)
        )

    def reading(self, shards: Iterable[str]) -> Mapping[str, FreshReader]:
        """Readers of these shards."""
        keyspace, servers = self.world.settings.keyspace, self.world.servers
        return {
            shard: FreshReader(
                keyspace, shard, [servers[shard].connect], flavor=servers[shard].flavor
            )
            for shard in shards
        }

    def follow(self, shards: Iterable[str]) -> None:
        """Read these shards from now on."""
        self.readers = self.reading(shards)
        self.cache.set_readers(self.readers)

    def keys(self) -> KeyMap:
        """What the invalidator is told."""
        keys = KeyMap()
        keys.of(f"{self.world.schema}.t")(lambda row: [f"user:{row['id']}"])
        return keys

    def get(
        self,
        user: int,
        session: ReadYourWrites | None = None,
        cache: CacheClient | None = None,
    ) -> object:
        """Read a user, with the writes of a session."""
        sql = f"SELECT COUNT(*) FROM {self.world.schema}.t WHERE id = %s"
        return (cache or self.cache).get_or_load(
            f"user:{user}", lambda read: read(sql, user, on=user)[0][0], newer_than=session
        )

    def is_hit(self, user: int, cache: CacheClient | None = None) -> bool:
        """Whether a user is in the cache now."""
        counters = (cache or self.cache).counters
        hits = counters()["hits"]
        self.get(user, cache=cache)
        return counters()["hits"] > hits

    def insert(self, user: int, shard: str, cookie: str | None) -> str:
        """Insert a user as the application does; the session's cookie."""
        session = ReadYourWrites.from_cookie(cookie)
        with app_session(self.world.servers[shard]) as connection:
            connection.cursor().execute(f"INSERT INTO {self.world.schema}.t VALUES ({user})")
            session.wrote(self.readers[shard].committed(connection))
        return session.to_cookie()


def nothing(_step: SwitchStep) -> None:
    """Ignore the step."""


def target_of(user: int) -> str:
    """The shard that has a user after the split."""
    keyspace_id = vindex_named("hash").keyspace_id(user)
    return TARGETS[keyspace_id[0] >= 0x80]


def test_a_split_loses_neither_own_writes_nor_invalidations(
    servers: list[DatabaseFixture], kafka: KafkaCluster, keyspace: str
) -> None:
    """R11, R12: the session's write on the source is in what the targets' readers return.

    A reader that is left on the source fills nothing, one of the keyspace follows by itself, and in
    the end all entries are right.
    """
    with split(servers, kafka, keyspace) as world:
        users = CachedUsers(world)

        def is_filled_in(user: int) -> bool:
            return users.is_hit(user, users.following)

        with (
            users.keyspace_reader,
            invalidating(
                world.settings.kafka, keyspace, users.opened.more_floors, keys=users.keys()
            ) as running,
        ):
            wait_for("all users are cached", lambda: all(map(is_filled_in, USERS)))
            users.cache.forget(*KEYS)
            wait_for("all users are cached", lambda: all(map(users.is_hit, USERS)))
            cookie = users.insert(FIRST_NEW, SOURCE, None)
            assert users.get(FIRST_NEW, ReadYourWrites.from_cookie(cookie)) == 1
            world.wait_applied()
            world.verified(0)
            run_switch(world.settings, nothing)
            running.wait_published()
            wait_for("BEGIN is applied", lambda: is_begun(users))

            users.cache.forget(*KEYS)
            assert not any(map(users.is_hit, (*USERS, *USERS)))
            session = ReadYourWrites.from_cookie(cookie)
            assert users.get(FIRST_NEW, session, users.following) == 1
            wait_for("the keyspace's reader fills", lambda: all(map(is_filled_in, USERS)))
            users.cache.forget(*KEYS)
            users.follow(TARGETS)
            assert users.get(FIRST_NEW, ReadYourWrites.from_cookie(cookie)) == 1
            wait_for("all are cached again", lambda: all(map(users.is_hit, USERS)))
            cookie = users.insert(SECOND_NEW, target_of(SECOND_NEW), cookie)
            session = ReadYourWrites.from_cookie(cookie)
            assert [users.get(each, session) for each in (FIRST_NEW, SECOND_NEW)] == [1, 1]
            wait_for("the change is applied", lambda: users.get(SECOND_NEW) == 1)
            wait_for("all are cached again", lambda: all(map(users.is_hit, USERS)))

        held = {*world.ids("-80"), *world.ids("80-")}
        assert [users.get(user) for user in USERS] == [int(user in held) for user in USERS]


def is_begun(users: CachedUsers) -> bool:
    """Whether every user's floor has the BEGIN of both targets."""
    floors = {user: users.opened.floor(f"user:{user}") for user in USERS}
    return all(
        floor is not None and set(TARGETS) <= floor.tokens.keys() for floor in floors.values()
    )
