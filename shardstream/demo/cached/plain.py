"""Ordinary caches with redis-py, for comparison: cache-aside, expiry alone, delete on CDC."""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from redis import Redis

from shardstream.demo.cached.catalogue import load
from shardstream.demo.cached.replicas import Connect
from shardstream.demo.cached.shop_cache import Answer, Counts
from shardstream.demo.sharded_writes import ShardDirectory

# Of the cache that only lets its entries expire.
TTL_S: Final = 300


class Kind(NamedTuple):
    """How an ordinary cache is kept up to date."""

    name: str
    deletes_after_commit: bool = False
    deletes_on_change: bool = False
    ttl_s: int | None = None


ASIDE: Final = Kind("cache-aside", deletes_after_commit=True)
ON_CDC: Final = Kind("delete on CDC", deletes_on_change=True)
EXPIRING: Final = Kind(f"TTL {TTL_S} s", ttl_s=TTL_S)
KINDS: Final = (ASIDE, ON_CDC, EXPIRING)


class ReplicaReads:
    """Queries on the replicas, or on the primary of a shard without one; a connection per thread.

    `connects`: by shard, to the server that is read.
    """

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        """Connect with the first query."""
        self._directory = directory
        self._connects = connects
        self._local = threading.local()

    def __call__(self, sql: str, *args: Any, on: int) -> Sequence[Any]:
        """Run a query on the shard of a product."""
        shard = self._directory.shard_of(on)
        open_ones: dict[str, Any] = self._local.__dict__.setdefault("connections", {})
        if shard not in open_ones:
            open_ones[shard] = self._connects[shard]()
        try:
            with open_ones[shard].cursor() as cursor:
                cursor.execute(sql, args)
                rows: Sequence[Any] = cursor.fetchall()
                return rows
        except Exception:
            open_ones.pop(shard).close()
            raise


class PlainCache:
    """`GET`, and on a miss `SELECT` and `SET`."""

    def __init__(self, kind: Kind, redis: "Redis", read: ReplicaReads) -> None:
        """Connect to nothing yet."""
        self.kind = kind
        self.name = kind.name
        self._redis = redis
        self._read = read
        self._lock = threading.Lock()
        self._hits = self._loads = 0

    def get(self, key: str, cookie: str = "") -> Answer:  # noqa: ARG002 - no such thing here
        """Return a page."""
        stored: Any = self._redis.get(self._name(key))
        if stored is not None:
            self._count(hits=1)
            return Answer(json.loads(stored), "cache")
        page = load(self._read, key)
        self._redis.set(self._name(key), json.dumps(page), ex=self.kind.ttl_s)
        self._count(loads=1)
        return Answer(page, "replica")

    def wrote(self, keys: Iterable[str]) -> None:
        """Delete the entries, if this cache is kept up to date by its writers."""
        if self.kind.deletes_after_commit:
            self.delete(keys)

    def delete(self, keys: Iterable[str]) -> None:
        """Delete entries."""
        self._redis.delete(*map(self._name, keys))

    def cookie_after(self, shard: str, connection: Any) -> str:  # noqa: ARG002 - likewise
        """Return an empty cookie: it would say nothing to this cache."""
        return ""

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries that the cache holds now, as they are stored."""
        found: Any = self._redis.mget([self._name(key) for key in keys])
        return {key: text for key, text in zip(keys, found, strict=True) if text is not None}

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return their pages."""
        return {key: json.loads(text) for key, text in self.stored(keys).items()}

    def counts(self) -> Counts:
        """Return what was counted so far."""
        with self._lock:
            return Counts(self._hits, self._loads, 0)

    def serve(self, shards: Sequence[str]) -> None:
        """Do nothing: the directory says where a product is."""

    def close(self) -> None:
        """Disconnect from Redis."""
        self._redis.close()

    def _name(self, key: str) -> str:
        return f"{self.name}:{key}"

    def _count(self, hits: int = 0, loads: int = 0) -> None:
        with self._lock:
            self._hits += hits
            self._loads += loads


def plain_caches(port: int, read: ReplicaReads) -> list[PlainCache]:
    """Return one cache of each kind, on the Redis server at a port of this machine."""

    def client() -> Redis:
        return Redis(port=port)

    return [PlainCache(kind, client(), read) for kind in KINDS]
