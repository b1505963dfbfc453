"""The shop's pages in shardstream's cache."""

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from caching.client.reads import Read
from caching.client.steps import ServerChoice
from caching.protocol import Entry, Floor
from caching.protocol.entry import parse_slot
from caching.reading.fresh_reader import FreshReader, FreshRows
from caching.reading.own_writes import ReadYourWrites
from caching.stores.opening import open_store
from event_token import EventToken, Flavor
from shardstream.cache import Cache
from shardstream.demo.cached.catalogue import load
from shardstream.demo.cached.replicas import Connect
from shardstream.demo.cached.shop_cache import Answer, Counts, Origin
from shardstream.demo.shop import VINDEX
from shardstream.settings.model import load_settings

CACHE: Final = "shop"
# An application would rather read the database than wait for Redis. Here one machine runs a dozen
# servers, and a page view that passes over a slow Redis would look like one that finds nothing.
STORE_TIMEOUT_MS: Final = 30_000


class _Servers(threading.local):
    """The ports of the servers that loaders of this thread have read."""

    ports: tuple[int, ...] = ()


class _NotingReader:
    """A FreshReader that notes which server answered."""

    def __init__(self, reader: FreshReader, servers: _Servers) -> None:
        self.reader = reader
        self._servers = servers

    def execute(
        self,
        sql: str,
        args: Sequence[Any] = (),
        *,
        at_least: Iterable[EventToken] | None = None,
        server: ServerChoice = "any",
        prefer: str | None = None,
    ) -> FreshRows:
        """Read, as FreshReader does."""
        rows = self.reader.execute(sql, args, at_least=at_least, server=server, prefer=prefer)
        self._servers.ports += (int(rows.server.rpartition(":")[2]),)
        return rows


class FreshCache:
    """shardstream's cache: fills are proven to be fresh, and nobody else is asked to do anything.

    `servers`: by shard, how to connect to its servers, replicas first. `primaries`: their ports.
    """

    name = "shardstream"

    def __init__(
        self,
        settings_path: Path,
        keyspace: str,
        flavor: Flavor,
        servers: Mapping[str, Sequence[Connect]],
        *,
        serving: Sequence[str],
        primaries: Iterable[int],
    ) -> None:
        """Connect to nothing yet."""
        settings = load_settings(settings_path)
        self._store = open_store(settings.cache_url(CACHE), CACHE, timeout_ms=STORE_TIMEOUT_MS)
        self._seen = _Servers()
        self._primaries = frozenset(primaries)
        self._readers = {
            shard: _NotingReader(FreshReader(keyspace, shard, each, flavor=flavor), self._seen)
            for shard, each in servers.items()
        }
        self._serving = tuple(serving)
        self._cache = Cache(self._store, self._of(serving), settings.cache(CACHE), vindex=VINDEX)

    def get(self, key: str, cookie: str = "") -> Answer:
        """Return a page that holds what the cookie's visitor has written."""
        session = ReadYourWrites.from_cookie(cookie)
        self._seen.ports = ()
        is_loaded = False

        def load_page(read: Read) -> Any:
            nonlocal is_loaded
            is_loaded = True
            return load(read, key)

        page = self._cache.get_or_load(key, load_page, newer_than=session.tokens)
        return Answer(page, self._origin() if is_loaded else "cache")

    def wrote(self, keys: Iterable[str]) -> None:
        """Do nothing: the change stream tells the invalidator."""

    def cookie_after(self, shard: str, connection: Any) -> str:
        """Return the cookie of a visitor whose write this connection has just committed."""
        session = ReadYourWrites()
        session.wrote(self._readers[shard].reader.committed(connection))
        return session.to_cookie()

    def stored(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Return the entries of the generation of their floors, as they are stored."""
        return {key: stored for key, (stored, _) in self._hits(keys).items()}

    def entries(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return the pages of these entries."""
        return {
            key: None if entry.value is None else json.loads(entry.value)
            for key, (_, entry) in self._hits(keys).items()
        }

    def counts(self) -> Counts:
        """Return what was counted so far."""
        counted = self._cache.counters()
        refused = sum(n for name, n in counted.items() if name.startswith("fills_refused"))
        return Counts(int(counted.get("hits", 0)), int(counted.get("loads", 0)), int(refused))

    def serve(self, shards: Sequence[str]) -> None:
        """Read from these shards from now on."""
        if self._serving != tuple(shards):
            self._cache.set_readers(self._of(shards))
            self._serving = tuple(shards)

    def close(self) -> None:
        """Disconnect."""
        self._store.close()
        for each in self._readers.values():
            each.reader.close()

    def _of(self, shards: Sequence[str]) -> dict[str, _NotingReader]:
        return {shard: self._readers[shard] for shard in shards}

    def _origin(self) -> Origin:
        return "primary" if self._primaries.issuperset(self._seen.ports) else "replica"

    def _hits(self, keys: Sequence[str]) -> dict[str, tuple[bytes, Entry]]:
        found = {}
        for key, pair in zip(keys, self._store.read(keys), strict=True):
            floor, entry = Floor.parse(pair.floor), parse_slot(pair.slot)
            if floor is None or pair.slot is None or not isinstance(entry, Entry):
                continue
            if entry.generation == floor.generation:
                found[key] = pair.slot, entry
        return found
