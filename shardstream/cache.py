"""The caches that applications import, with the settings file as a way to make one."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

from caching.client.cache import AsyncCacheClient, CacheBase, CacheClient
from caching.client.options import Codec
from caching.protocol import CacheLayout
from caching.reading.reader import Reader, RoutedReader
from caching.stores.opening import open_store, store_kind
from event_token.errors import UsageError

if TYPE_CHECKING:
    from caching.invalidating.in_process import ProcessStore
    from shardstream.settings.model import Settings


class _FromSettings(CacheBase):
    """Makes a cache of the settings file."""

    @classmethod
    def from_settings(
        cls,
        path: str | PathLike[str] | None,
        name: str,
        readers: Mapping[str, Reader] | RoutedReader,
        *,
        codec: str | Codec = "json",
        vindex: str | None = None,
    ) -> Self:
        """Return the cache `[caches.NAME]` of a settings file.

        `path` None takes the file that the variable SHARDSTREAM_CONFIG names, else
        ./shardstream.toml. A store in memory is invalidated by a thread of this process, until
        `close`. `vindex` None takes the one that the keyspace's tables share; a KeyspaceReader
        has all of them. UsageError lists all problems of the file.
        """
        from shardstream.settings.model import load_settings  # noqa: PLC0415 - pydantic, if wanted

        settings = load_settings(None if path is None else Path(path))
        section = settings.cache(name)
        if isinstance(readers, Mapping):
            vindex = vindex or _vindex(settings, section.keyspace)
        if store_kind(section.store).is_in_process:
            memory = _in_process(settings, name, is_async=cls.is_async)
            cache = cls(memory, readers, section, codec=codec, vindex=vindex)
            memory.start()
            return cache
        store = open_store(
            section.store,
            name,
            section.buckets,
            is_async=cls.is_async,
            stale_ok_s=section.stale_ok_s,
            password=settings.cache_password(name),
            clock=settings.clock_uncertainty(),
        )
        return cls(store, readers, section, codec=codec, vindex=vindex)


class Cache(_FromSettings, CacheClient):
    """Values by key, from a store where they are proven to be fresh, else from the database.

    `readers`: a KeyspaceReader, or a FreshReader for each shard that serves, by name. Safe to use
    from several threads. No call raises a store's errors.
    """


class AsyncCache(_FromSettings, AsyncCacheClient):
    """`Cache` for asyncio: loaders are coroutine functions, and `read` is awaited.

    One event loop uses it.
    """


def _in_process(settings: "Settings", name: str, *, is_async: bool) -> "ProcessStore":
    # An application on Redis needs neither the reading of logs nor Kafka's client.
    from caching.invalidating.in_process import ProcessStore  # noqa: PLC0415
    from shardstream.configured_cache import ConfiguredCache  # noqa: PLC0415

    keyspace = settings.cache(name).keyspace
    cache = ConfiguredCache.of(settings, keyspace, name, key_range="-", start="stored")
    return ProcessStore(
        CacheLayout(name, cache.section.buckets),
        cache.stream,
        cache.keys,
        replace(cache.invalidator_options(), lease_ms=0),
        is_async=is_async,
        stale_ok_s=cache.section.stale_ok_s,
    )


def _vindex(settings: "Settings", keyspace: str) -> str:
    names = sorted({each.vindex for each in settings.keyspace(keyspace).vindexes}) or ["hash"]
    if len(names) > 1:
        raise UsageError(
            f"tables of keyspace {keyspace} have several vindexes ({', '.join(names)}): pass "
            "vindex=, the one that places the values by which loaders read"
        )
    return names[0]
