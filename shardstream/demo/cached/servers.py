"""The servers of the cached shop: shards and their lagging replicas, Kafka, and Redis."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from redis import Redis

from event_token import Flavor
from shardstream.demo.cached.catalogue import SHARDING_COLUMNS, TABLES
from shardstream.demo.cached.fresh import CACHE
from shardstream.demo.cached.invalidation import KEY_MAP
from shardstream.demo.cached.replicas import Replicas, connect_as_reader, make_reader
from shardstream.demo.shop import (
    Connect,
    connect_as_application,
    connect_as_root,
    create_tables,
    make_accounts,
    settings_of_the_shop,
)
from shardstream.local.cache_server import RedisServer
from shardstream.local.database_server import NOT_DURABLE
from shardstream.local.shape import StackShape
from shardstream.local.stack import Stack

SHARDS = 2


class Servers:
    """All servers in one folder; `targets` of a split have no replica."""

    def __init__(
        self,
        folder: Path,
        flavor: Flavor,
        report: Callable[[str], None],
        cleanup: ExitStack,
        *,
        targets: tuple[str, ...],
    ) -> None:
        """Start everything; `cleanup` kills what was started."""
        shape = StackShape(flavor=flavor, shards=SHARDS, brokers=1, targets=targets)
        self.targets = targets
        self.flavor = flavor
        self.keyspace = shape.keyspace
        self.stack = Stack(
            folder / "stack", shape, die_with_parent=True, extra_args=NOT_DURABLE, report=report
        )
        self.sources = [shard for shard in self.stack.databases if shard not in targets]
        self.replicas = Replicas(
            folder, {shard: self.stack.databases[shard] for shard in self.sources}, report
        )
        self.redis_server = RedisServer(folder / "redis", die_with_parent=True, report=report)
        for kill in (self.stack.kill, self.replicas.kill, self.redis_server.kill):
            cleanup.callback(kill)
        self.redis_server.launch()
        self.replicas.launch()
        self.stack.start()
        self._make_accounts_and_tables()
        self.replicas.follow()
        self.redis_server.finish_start()
        self.redis = Redis(port=self.redis_server.port)
        cleanup.callback(self.redis.close)

    def _make_accounts_and_tables(self) -> None:
        for shard, server in self.stack.databases.items():
            make_accounts(server, is_target=shard in self.targets)
            make_reader(server)
        for shard in self.sources:
            create_tables(self.stack.databases[shard], TABLES)
        with self.settings_path.open("a") as file:
            file.write(settings_of_the_shop(self.keyspace, SHARDING_COLUMNS))

    def add_cache_settings(self) -> None:
        """Add shardstream's cache to the settings file."""
        lines = [
            "",
            f"[caches.{CACHE}]",
            f'keyspace = "{self.keyspace}"',
            f'store = "{self.redis_url}"',
            f'keys = "{KEY_MAP}"',
        ]
        with self.settings_path.open("a") as file:
            file.write("\n".join(lines) + "\n")

    @property
    def settings_path(self) -> Path:
        """The settings file."""
        return self.stack.settings_path

    @property
    def redis_url(self) -> str:
        """The URL of Redis."""
        return f"redis://{self.redis_server.address}"

    @property
    def applications(self) -> dict[str, Connect]:
        """How the shop writes, by shard."""
        return {s: connect_as_application(server) for s, server in self.stack.databases.items()}

    @property
    def roots(self) -> dict[str, Connect]:
        """How the proof reads the primaries, by shard."""
        return {shard: connect_as_root(server) for shard, server in self.stack.databases.items()}

    @property
    def readers(self) -> Mapping[str, Sequence[Connect]]:
        """How page views read, by shard: from the replica if there is one, then the primary."""
        found = {}
        for shard, primary in self.stack.databases.items():
            replica = self.replicas.servers.get(shard)
            servers = [primary] if replica is None else [replica, primary]
            found[shard] = [connect_as_reader(server) for server in servers]
        return found

    @property
    def primary_ports(self) -> list[int]:
        """The ports of the primaries."""
        return [server.port for server in self.stack.databases.values()]
