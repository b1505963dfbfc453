"""The shop's pages in shardstream's cache and, for comparison, in ordinary ones with redis-py."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis import Redis

from caching.client.reads import Read
from caching.protocol import CacheEntry, Floor
from caching.protocol.stored_forms import parse_slot
from caching.reading.fresh_reader import FreshReader
from caching.reading.own_writes import ReadYourWrites
from caching.reading.reader import FreshRows
from caching.steps import run_steps
from caching.stores.opening import open_store
from event_token.errors import Halt, Retry
from shardstream.cache import Cache
from shardstream.demo.cached.catalogue import SHARDING_COLUMNS, keys_of, load
from shardstream.demo.shop import DATABASE, VINDEX, Connect, ShardDirectory
from shardstream.demo.story import Story
from shardstream.subscriber import Subscriber
from topics.reading.planner import Unmerged

CACHE: Final = "shop"
# The name of shardstream's cache among those of the demo.
FRESH: Final = "shardstream"
KEY_MAP: Final = "shardstream.demo.cached.catalogue:KEYS"
# An application would rather read the database than wait for Redis. Here one machine runs a dozen
# servers, and a page view that passes over a slow Redis would look like one that finds nothing.
STORE_TIMEOUT_MS: Final = 30_000
# Of the cache that only lets its entries expire.
TTL_S: Final = 300
STOP_S_MAX: Final = 30.0

Origin = Literal["cache", "replica", "primary"]


@dataclass(frozen=True, slots=True)
class PageView:
    """A page as a visitor got it, and where it came from."""

    page: Any
    origin: Origin


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Page views so far: from the cache, and from the database; `refused`: loads not cached."""

    hits: int
    loads: int
    refused: int = 0


class ShopCache:
    """Pages by key, from Redis or from the database. Safe to use from several threads.

    `is_followed`: something follows the change stream and removes the entries of changed rows.
    `stays`: how long a wrong entry stays.
    """

    name: str
    is_followed = False
    stays = "for good"

    def get(self, key: str, cookie: str = "") -> PageView:
        """Return a page, as a visitor with this cookie gets it."""
        raise NotImplementedError

    def wrote(self, keys: Iterable[str]) -> None:
        """Do what the application does for these pages right after a commit."""

    def cookie_after(self, shard: str, connection: Any) -> str:  # noqa: ARG002 - for one that can
        """Return the cookie of a visitor whose write this connection has just committed."""
        return ""

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries that the cache would answer with now, as they are stored."""
        raise NotImplementedError

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return their pages."""
        raise NotImplementedError

    def counts(self) -> PageCounts:
        """Return what was counted so far."""
        raise NotImplementedError

    def follow(self, back_s: int = 0) -> None:
        """Start what removes entries, `back_s` seconds before where it would go on."""

    def check(self) -> None:
        """Raise what ended it, unless it is a command of the demo."""

    def kill(self) -> None:
        """Kill it without warning."""

    def close(self) -> None:
        """Disconnect."""


class _NotingReader:
    """A FreshReader that notes whether a primary answered the loaders of this thread."""

    def __init__(self, reader: FreshReader, noted: threading.local) -> None:
        self.reader = reader
        self._noted = noted

    def execute(self, *arguments: Any, **options: Any) -> FreshRows:
        rows = self.reader.execute(*arguments, **options)
        self._noted.are_primary.append(rows.is_primary)
        return rows


class _FreshCache(ShopCache):
    """shardstream's cache: fills are proven to be fresh; `shardstream invalidate` follows changes.

    `servers`: by shard, how to connect to its servers, replicas first.
    """

    name = FRESH
    is_followed = True

    def __init__(self, story: Story, servers: Mapping[str, Sequence[Connect]]) -> None:
        section, password = story.settings.cache(CACHE), story.settings.cache_password(CACHE)
        clock = story.settings.clock_uncertainty()
        self._store = open_store(
            section.store, CACHE, timeout_ms=STORE_TIMEOUT_MS, password=password, clock=clock
        )
        self._story = story
        self._starts = 0
        self._noted = threading.local()
        flavor = story.stack.shape.flavor
        self._readers = {
            shard: _NotingReader(
                FreshReader(story.keyspace, shard, each, flavor=flavor, clock=clock), self._noted
            )
            for shard, each in servers.items()
        }
        self._serving = story.directory.serving
        self._cache = Cache(self._store, self._of_serving(), section, vindex=VINDEX)

    def get(self, key: str, cookie: str = "") -> PageView:
        """Return a page that holds what the cookie's visitor has written."""
        if self._serving != self._story.directory.serving:
            self._serving = self._story.directory.serving
            self._cache.set_readers(self._of_serving())
        session = ReadYourWrites.from_cookie(cookie)
        self._noted.are_primary = []
        is_loaded = False

        def load_page(read: Read) -> Any:
            nonlocal is_loaded
            is_loaded = True
            return load(read, key)

        page = self._cache.get_or_load(key, load_page, newer_than=session.tokens)
        if not is_loaded:
            return PageView(page, "cache")
        return PageView(page, "primary" if all(self._noted.are_primary) else "replica")

    def cookie_after(self, shard: str, connection: Any) -> str:
        session = ReadYourWrites()
        session.wrote(self._readers[shard].reader.committed(connection))
        return session.to_cookie()

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries of the generation of their floors, as they are stored."""
        return {key: stored for key, (stored, _) in self._hits(keys).items()}

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        return {
            key: None if entry.value is None else json.loads(entry.value)
            for key, (_, entry) in self._hits(keys).items()
        }

    def counts(self) -> PageCounts:
        counted = self._cache.counters()
        refused = sum(n for name, n in counted.items() if name.startswith("fills_refused"))
        return PageCounts(int(counted.get("hits", 0)), int(counted.get("loads", 0)), int(refused))

    def follow(self, back_s: int = 0) -> None:
        self._starts += 1
        options = ["--cache", CACHE, *(("--from", str(back_s)) if back_s else ())]
        self._story.workers.start(self._invalidator, "invalidate", self._story.keyspace, *options)

    def kill(self) -> None:
        self._story.workers.kill_one(self._invalidator)

    def close(self) -> None:
        run_steps(self._store.close())
        for each in self._readers.values():
            each.reader.close()

    @property
    def _invalidator(self) -> str:
        return f"invalidator_{self._starts}"

    def _of_serving(self) -> dict[str, _NotingReader]:
        return {shard: self._readers[shard] for shard in self._serving}

    def _hits(self, keys: Sequence[str]) -> dict[str, tuple[bytes, CacheEntry]]:
        found = {}
        for key, pair in zip(keys, run_steps(self._store.read(keys)), strict=True):
            floor, entry = Floor.parse(pair.floor), parse_slot(pair.slot)
            if floor is None or pair.slot is None or not isinstance(entry, CacheEntry):
                continue
            if entry.generation == floor.generation:
                found[key] = pair.slot, entry
        return found


class _ReplicaReads:
    """Queries on the replicas, or on the primary of a shard without one; a connection per thread.

    `connects`: by shard, to the server that is read.
    """

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        self._directory = directory
        self._connects = connects
        self._local = threading.local()

    def __call__(self, sql: str, *args: Any, on: int) -> Sequence[Any]:
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


class _ExpiringCache(ShopCache):
    """`GET`, and on a miss `SELECT` and `SET`, for a time."""

    name = f"TTL {TTL_S} s"
    stays = "until they expire"
    ttl_s: int | None = TTL_S

    def __init__(self, port: int, read: _ReplicaReads) -> None:
        self._redis = Redis(port=port)
        self._read = read
        self._counted = Counter[str]()
        self._lock = threading.Lock()

    def get(self, key: str, cookie: str = "") -> PageView:  # noqa: ARG002 - no such thing here
        stored: Any = self._redis.get(self._name(key))
        if stored is not None:
            self._count("hits")
            return PageView(json.loads(stored), "cache")
        page = load(self._read, key)
        self._redis.set(self._name(key), json.dumps(page), ex=self.ttl_s)
        self._count("loads")
        return PageView(page, "replica")

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        found: Any = self._redis.mget([self._name(key) for key in keys])
        return {key: text for key, text in zip(keys, found, strict=True) if text is not None}

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        return {key: json.loads(text) for key, text in self.stored(keys).items()}

    def counts(self) -> PageCounts:
        with self._lock:
            return PageCounts(self._counted["hits"], self._counted["loads"])

    def close(self) -> None:
        self._redis.close()

    def _count(self, what: str) -> None:
        with self._lock:
            self._counted[what] += 1

    def _delete(self, keys: Iterable[str]) -> None:
        self._redis.delete(*map(self._name, keys))

    def _name(self, key: str) -> str:
        return f"{self.name}:{key}"


class _CacheAside(_ExpiringCache):
    """The writer deletes the entries after its commit."""

    name = "cache-aside"
    stays = "for good"
    ttl_s = None

    def wrote(self, keys: Iterable[str]) -> None:
        self._delete(keys)


class _CdcCache(_ExpiringCache):
    """A reader of the change stream, in a thread, deletes the entries of changed rows."""

    name = "delete on CDC"
    stays = "for good"
    ttl_s = None
    is_followed = True

    def __init__(self, port: int, read: _ReplicaReads, story: Story) -> None:
        super().__init__(port, read)
        self._story = story
        self._events: Subscriber | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._began_us: int | None = None

    def follow(self, back_s: int = 0) -> None:
        """Start, `back_s` seconds ago, or where it began at first if that is later."""
        now_us = time.time_ns() // 1_000
        start: int | str = "latest"
        if self._began_us is None:
            self._began_us = now_us
        elif back_s:
            start = max(self._began_us, now_us - back_s * 1_000_000)
        self._events = Subscriber.from_settings(
            self._story.stack.settings_path,
            self._story.keyspace,
            start=start,
            mode=Unmerged(),
            tables=tuple(f"{DATABASE}.{table}" for table in SHARDING_COLUMNS),
        )
        self._thread = threading.Thread(target=self._run, args=(self._events,), daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        if self._events is not None and self._thread is not None:
            self._events.close()
            self._thread.join(STOP_S_MAX)
            if self._thread.is_alive():
                raise Halt(f"the reader that deletes entries goes on after {STOP_S_MAX:.0f} s")
            self._events = self._thread = None

    def close(self) -> None:
        self.kill()
        super().close()

    def _run(self, events: Subscriber) -> None:
        try:
            while True:
                with suppress(Retry):
                    for event in events:
                        for row in (event.before, event.after):
                            if row is not None:
                                self._delete(keys_of(int(str(row["product_id"]))))
                    return
        except Exception as error:  # noqa: BLE001 - kept for check(), which raises it
            self._error = error


def shop_caches(
    story: Story, servers: Mapping[str, Sequence[Connect]], redis_port: int, *, plain: bool
) -> list[ShopCache]:
    """Return shardstream's cache, and behind it, if `plain`, ordinary ones; not connected yet.

    `servers`: by shard, how to connect to its servers, replicas first.
    """
    caches: list[ShopCache] = [_FreshCache(story, servers)]
    if plain:
        read = _ReplicaReads(story.directory, {shard: each[0] for shard, each in servers.items()})
        caches += [
            _CacheAside(redis_port, read),
            _CdcCache(redis_port, read, story),
            _ExpiringCache(redis_port, read),
        ]
    for cache in caches:
        story.cleanup.callback(cache.close)
    return caches
