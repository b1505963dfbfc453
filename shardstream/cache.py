"""The caches that applications import, with the settings file as a way to make one."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

from caching.client.async_cache import AsyncCache as ClientAsyncCache
from caching.client.cache import Cache as ClientCache
from caching.client.codecs import Codec
from caching.client.readers import Reader
from caching.protocol import Layout
from caching.stores.async_over import AsyncOver
from caching.stores.opening import open_async_store, open_store
from event_token.errors import UsageError

if TYPE_CHECKING:
    from caching.invalidating.in_process import ProcessStore
    from shardstream.settings.model import Settings


class Cache(ClientCache):
    """Values by key, from a store where they are proven to be fresh, else from the database.

    `readers` has a FreshReader for each shard that serves, by name. Safe to use from several
    threads. No call raises what a store raises.
    """

    @classmethod
    def from_settings(
        cls,
        path: str | PathLike[str] | None,
        name: str,
        readers: Mapping[str, Reader],
        *,
        codec: str | Codec = "json",
        vindex: str | None = None,
    ) -> Self:
        """Return the cache `[caches.NAME]` of a settings file.

        `path` None takes the file that the variable SHARDSTREAM_CONFIG names, else
        ./shardstream.toml. A store in memory is invalidated by a thread of this process, until
        `close`. `vindex` None takes the one that the keyspace's tables share. UsageError
        lists everything that is wrong with the file.
        """
        settings = _settings(path)
        section = settings.cache(name)
        vindex = vindex or _vindex(settings, section.keyspace)
        memory = _in_process(settings, name)
        store = memory or open_store(
            settings.cache_url(name), name, section.buckets, stale_ok_s=section.stale_ok_s
        )
        cache = cls(store, readers, section, codec=codec, vindex=vindex)
        if memory:
            memory.start()
        return cache


class AsyncCache(ClientAsyncCache):
    """`Cache` for asyncio: loaders are coroutine functions, and `read` is awaited.

    One event loop uses it.
    """

    @classmethod
    def from_settings(
        cls,
        path: str | PathLike[str] | None,
        name: str,
        readers: Mapping[str, Reader],
        *,
        codec: str | Codec = "json",
        vindex: str | None = None,
    ) -> Self:
        """Return the cache `[caches.NAME]` of a settings file; see `Cache.from_settings`."""
        settings = _settings(path)
        section = settings.cache(name)
        vindex = vindex or _vindex(settings, section.keyspace)
        memory = _in_process(settings, name)
        store = (
            AsyncOver(memory, in_threads=False)
            if memory
            else open_async_store(
                settings.cache_url(name), name, section.buckets, stale_ok_s=section.stale_ok_s
            )
        )
        cache = cls(store, readers, section, codec=codec, vindex=vindex)
        if memory:
            memory.start()
        return cache


def _settings(path: str | PathLike[str] | None) -> "Settings":
    from shardstream.settings.model import load_settings  # noqa: PLC0415 - pydantic, if wanted

    return load_settings(None if path is None else Path(path))


def _in_process(settings: "Settings", name: str) -> "ProcessStore | None":
    """Return the store of a cache in memory, with its invalidator; None for one on servers."""
    section = settings.cache(name)
    if not section.store.startswith("memory:"):
        return None
    # An application on Redis needs neither the reading of logs nor Kafka's client.
    from caching.invalidating.in_process import ProcessStore  # noqa: PLC0415
    from shardstream.commands.invalidate.chosen import Chosen, InvalidateOptions  # noqa: PLC0415

    chosen = Chosen.of(settings, InvalidateOptions(section.keyspace, name))
    options = replace(chosen.invalidator_options(), lease_ms=0)
    layout = Layout(name, section.buckets)
    return ProcessStore(layout, chosen.stream, chosen.keys, options, stale_ok_s=section.stale_ok_s)


def _vindex(settings: "Settings", keyspace: str) -> str:
    names = sorted({each.vindex for each in settings.keyspace(keyspace).vindexes}) or ["hash"]
    if len(names) > 1:
        raise UsageError(
            f"tables of keyspace {keyspace} have several vindexes ({', '.join(names)}): pass "
            "vindex=, the one that places the values by which loaders read"
        )
    return names[0]
