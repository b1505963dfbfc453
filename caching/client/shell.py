"""What the caches for threads and for asyncio have in common."""

import time
from collections.abc import Mapping
from typing import Generic, Literal, TypeVar

from caching.client.answers import Missed
from caching.client.codecs import Codec, codec_named
from caching.client.core import Core
from caching.client.options import CacheOptions
from caching.client.readers import Reader, Readers
from caching.errors import StoreError
from caching.findings import Findings
from caching.protocol import Layout
from caching.stores.store import AsyncStore, Store
from event_token import EventToken

S = TypeVar("S", Store, AsyncStore)

# Which replica is asked first: the one whose read was last filled in, or the first of the list.
Prefer = Literal["fresh", "listed"]
# Refused fills of a key in a row after which its primary is read.
PRIMARY_AFTER = 3


class Shell(Generic[S]):
    """A store, its readers, and the core that decides."""

    def __init__(
        self,
        store: S,
        readers: Mapping[str, Reader],
        options: CacheOptions = CacheOptions(),  # noqa: B008 - frozen
        *,
        codec: str | Codec = "json",
        vindex: str = "hash",
        primary_after: int = PRIMARY_AFTER,
        prefer: Prefer = "fresh",
    ) -> None:
        """Check the arguments; nothing is connected."""
        self._core = Core(
            store,
            options,
            codec_named(codec),
            primary_after=primary_after,
            prefers_fresh=prefer == "fresh",
            clock=time.monotonic,
        )
        self._store: S = store
        self._vindex = vindex
        self._readers = Readers(readers, vindex)
        self._begin()

    def _begin(self) -> None:
        """Make what only this kind of cache has."""
        raise NotImplementedError

    def set_readers(self, readers: Mapping[str, Reader]) -> None:
        """Replace the readers, after a reshard: those of the shards that serve now."""
        self._readers = Readers(readers, self._vindex)

    def _told(self, store: Findings | StoreError, readers: Findings) -> list[str]:
        """Return the warnings of a preflight; UsageError if there are problems."""
        found = Findings()
        if isinstance(store, StoreError):  # the cache works again once it answers
            found.warnings.append(f"{store}. Fix: start it, or correct its URL")
        else:
            found.add(store).add(_layout_findings(store.layout, self._store.layout))
        found.add(readers).refuse(f"cache {self._store.layout.cache}")
        return found.warnings

    def counters(self) -> Mapping[str, float]:
        """Return what was counted since the cache was made, by name."""
        return self._core.counters.read()


def _layout_findings(told: str | None, layout: Layout) -> Findings:
    found = Findings()
    if told is None:
        found.warnings.append(
            "no invalidator has run on this store, so nothing is a hit. Fix: shardstream "
            f"invalidate KEYSPACE --cache {layout.cache}"
        )
    elif told != layout.text:
        found.problems.append(
            f"its invalidator has the layout {told}, this client {layout.text} (number of buckets, "
            "version, memcached servers): they share nothing, and nothing is a hit. Fix: give both "
            "the same settings"
        )
    return found


def flight_of(key: str, missed: Missed, writes: tuple[EventToken, ...]) -> tuple[object, ...]:
    """Return what a load is for: callers that saw another floor do not share it."""
    return key, missed.pair and missed.pair.floor, writes
