"""What a loader reads through, and what is recorded of it: the oldest token of each shard."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

from caching.client.counters import Counters
from caching.client.readers import Readers, Rows
from caching.client.steps import Load
from caching.protocol.freshness import Tokens, oldest
from event_token import EventToken

Writes = EventToken | Iterable[EventToken]


class Recorder:
    """The tokens of everything that one loader reads; `newer_than`: what its reads have to hold.

    `replicas`: which one of each shard answered last.
    """

    def __init__(self, newer_than: tuple[EventToken, ...]) -> None:
        self.newer_than = newer_than
        self.replicas: dict[str, str] = {}
        self._tokens: list[EventToken] = []
        self._begun = 0
        self._lock = Lock()

    def begin(self) -> None:
        """Note a read that begins: until its token is there, the whole value is unproven."""
        with self._lock:
            self._begun += 1

    def add(self, token: EventToken | None) -> None:
        """Note what a read has returned; one without a token leaves the value unproven."""
        if token is not None:
            with self._lock:
                self._tokens.append(token)

    def tokens(self) -> Tokens:
        """Return what all reads are proven to hold.

        Nothing if one of them had no token, failed, or was not waited for: a loader may go on
        without a part of its value, and that part is as old as it gets.
        """
        with self._lock:
            return oldest(self._tokens) if self._begun == len(self._tokens) else {}


# The loader that runs in this thread or task.
_LOADING: ContextVar[Recorder | None] = ContextVar("shardstream_loading", default=None)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Make this the recorder of the loader that runs."""
    before = _LOADING.set(recorder)
    try:
        yield
    finally:
        _LOADING.reset(before)


def writes_of(newer_than: Writes | None) -> tuple[EventToken, ...]:
    """Return the writes that a value has to hold; within a loader also those of its own value.

    What a loader takes from a cache is older than its reads, so its own value is not cached.
    """
    given = (newer_than,) if isinstance(newer_than, EventToken) else tuple(newer_than or ())
    loading = _LOADING.get()
    if loading is None:
        return given
    loading.begin()
    return given + tuple(token for token in loading.newer_than if token not in given)


class Read:
    """Queries of one loader, on any shards, any number of times.

    `read(sql, *args, on=value)` returns the rows as the driver gives them. `on` is the value of
    the sharding column, `shard` the name of a shard; a keyspace of one shard needs neither.
    """

    def __init__(
        self, readers: Readers, load: Load, recorder: Recorder, counters: Counters
    ) -> None:
        self._readers = readers
        self._load = load
        self._recorder = recorder
        self._counters = counters

    def __call__(
        self, sql: str, *args: Any, on: object = None, shard: str | None = None
    ) -> Sequence[Any]:
        """Run a query; UsageError where the shard is not clear, Stale, or the driver's errors."""
        self._recorder.begin()
        return self._execute(sql, args, self._readers.shard_of(on, shard)).rows

    def _execute(self, sql: str, args: Sequence[Any], shard: str) -> Rows:
        at_least = self._load.newer_than or None
        rows = self._readers.reader(shard).execute(
            sql,
            args,
            at_least=at_least,
            server=self._load.server,
            prefer=self._load.prefer.get(shard),
        )
        if at_least is not None:
            self._counters.add("own_write_reads")
            self._counters.add("own_write_primary", rows.is_primary)
            self._counters.add("own_write_waits", rows.has_waited)
        if not rows.is_primary:
            self._recorder.replicas[shard] = rows.server
        self._recorder.add(rows.token)
        return rows


class AsyncRead(Read):
    """`Read` for asyncio: the query runs in a thread, because drivers block."""

    async def __call__(  # type: ignore[override]  # the same call, awaited
        self, sql: str, *args: Any, on: object = None, shard: str | None = None
    ) -> Sequence[Any]:
        """Run a query; UsageError where the shard is not clear, Stale, or the driver's errors."""
        self._recorder.begin()
        found = self._readers.shard_of(on, shard)
        rows = await asyncio.to_thread(self._execute, sql, args, found)
        return rows.rows
