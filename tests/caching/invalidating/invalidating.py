"""Runs invalidators on shard logs as producers write them, and plays their clients."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from caching.invalidating.invalidator import (
    Invalidator,
    InvalidatorCounters,
    InvalidatorOptions,
    InvalidatorStatus,
)
from caching.invalidating.log import LogStream
from caching.key_map import KeyMap
from caching.protocol import CacheEntry, Fill, Floor, decide_fill, decide_hit
from caching.protocol.decisions import Hit
from caching.protocol.freshness import holds
from caching.stores.store import FloorStore
from event_token import ClockUncertainty, EventToken, KeyRange
from tests.caching.protocol.tokens import TRUSTED, by_shard
from tests.caching.stores.opened import TTL_MS, Opened
from tests.producers.session.producing import Running
from tests.waiting import wait_for
from topics.kafka.client import ClientConfig
from topics.records.vevent import VEvent
from topics.schemas import open_schema_ids

# Runs a test on every kind of store, not in memory alone.
on_each_store = pytest.mark.parametrize("cache", ["memory", "redis", "memcached"], indirect=True)

KEYS = KeyMap()
KEYS.of("shop.orders")(lambda row: [f"order:{row['id']}"])


def key_of(event: VEvent) -> str:
    """The cache key of a row that a writer wrote."""
    [key] = KEYS.keys_of(event)
    return key


class RunningInvalidator(Running):
    """An invalidator in a thread, with what it has told."""

    def __init__(
        self,
        config: ClientConfig,
        keyspace: str,
        open_floors: Callable[[], FloorStore],
        *,
        keys: KeyMap = KEYS,
        key_range: str = "-",
        name: str | None = None,
        **options: Any,
    ) -> None:
        self.told: list[InvalidatorStatus] = []
        schema_ids = open_schema_ids(config, None)
        clock = ClockUncertainty()
        stream = LogStream(keyspace, KeyRange.parse(key_range), config, schema_ids, clock)
        chosen = InvalidatorOptions(**{"lease_ms": 0, "publish_ms": 100, **options})
        reporter = None if name is None else stream.reporter(name)
        self._invalidator = Invalidator(
            stream, keys, open_floors, chosen, self.told.append, reporter
        )
        super().__init__("the invalidator", self._invalidator.run)

    @property
    def counters(self) -> InvalidatorCounters:
        """What it has counted."""
        return self._invalidator.counters

    @property
    def state(self) -> str:
        """What it said last that it does."""
        self.check()
        return self.told[-1].state if self.told else ""

    def says(self, text: str) -> bool:
        """Whether it has told something with this text."""
        self.check()
        return any(text in status.note for status in list(self.told))

    def wait_told(self, count: int) -> None:
        """Wait until it has told this number of things more."""
        seen = len(self.told)

        def told() -> bool:
            self.check()
            return len(self.told) >= seen + count

        wait_for("it goes on", told)

    def wait_published(self) -> None:
        """Wait until it has stored a position after all that it has read by now."""
        seen = len(self.told)

        def published() -> bool:
            self.check()
            later = [status for status in list(self.told)[seen:] if not status.note]
            return len(later) > 1 and later[-1].position_age_s is not None

        wait_for("a position is stored", published)


@contextmanager
def invalidating(
    config: ClientConfig, keyspace: str, open_floors: Callable[[], FloorStore], **options: Any
) -> Iterator[RunningInvalidator]:
    """An invalidator that has stored its position; it is stopped at the end."""
    running = RunningInvalidator(config, keyspace, open_floors, **options)
    try:
        running.wait_published()
        yield running
    finally:
        running.end()


class Client:
    """A client of the cache, one step at a time."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._store = opened.store

    def make_floors(self, *keys: str) -> None:
        """Ask for the floors of keys until they are there."""

        def made() -> bool:
            missing = [key for key in keys if self._opened.floor(key) is None]
            self._store.want_floors(self._store.layout.bucket(key) for key in missing)
            return not missing

        wait_for("the floors are made", made)

    def fill(self, key: str, *tokens: EventToken, value: bytes = b"v") -> bool:
        """Fill a key with what was read at these tokens; tell whether it is allowed."""
        [seen] = self._store.read([key])
        prepared = self._store.prepare(key, seen, 0)
        assert prepared is not None
        decision = decide_fill(prepared.floor, prepared.slot, by_shard(tokens), TRUSTED)
        if not isinstance(decision, Fill):
            self._store.release(key, prepared)
            return False
        nonce = secrets.token_bytes(8)
        entry = CacheEntry(decision.generation, nonce, by_shard(tokens), 0, value)
        return self._store.fill(key, prepared, entry.to_bytes(), TTL_MS)

    def hit(self, key: str) -> bool:
        """Tell whether a key is a hit."""
        [pair] = self._store.read([key])
        return isinstance(decide_hit(pair.floor, pair.slot, TRUSTED), Hit)

    def floor(self, key: str) -> Floor:
        """The floor of a key, which is there."""
        found = self._opened.floor(key)
        assert found is not None, key
        return found

    def wait_applied(self, *events: VEvent) -> None:
        """Wait until the floors of the rows' keys hold their changes."""
        for event in events:
            wait_for(
                f"{key_of(event)} is invalidated",
                lambda event=event: holds(  # type: ignore[misc]
                    self.floor(key_of(event)).tokens, event.token, TRUSTED
                ),
            )
