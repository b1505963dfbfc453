"""What a loader reads through: the readers of the shards, and the tokens of what they returned."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Literal, Protocol, get_args

from caching.errors import CacheFindings
from caching.protocol.freshness import Tokens, oldest
from caching.reading.reader import Checkable, FreshRows, Reader, RoutedReader, ServerRole
from credentials.per_process import PerProcess
from event_token import EventToken, ShardName
from event_token.errors import UsageError
from topics.keyspace.vindexes import vindex_named

Writes = EventToken | Iterable[EventToken]

Counted = Literal[
    "hits",
    "negative_hits",
    "misses",
    "behind_hits",
    "bypassed",
    "stale_hits",
    "fills",
    "loads",
    "load_seconds",
    "shared_loads",
    "lease_waits",
    "own_write_reads",
    "own_write_waits",
    "own_write_primary",
    "store_errors",
    "unreadable",
    "fills_refused_older",
    "fills_refused_unknown",
    "fills_refused_uncovered",
    "fills_refused_changed",
    "fills_refused_no_floor",
    "fills_refused_replaced",
    "fills_refused_leased",
]


class Counters:
    """Sums since the client was made; any thread may add and read."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = dict.fromkeys(get_args(Counted), 0)
        self._lock = PerProcess(Lock)

    def add(self, name: Counted, count: float = 1) -> None:
        """Add to one sum."""
        if count:
            with self._lock.here():
                self._sums[name] += count

    def read(self) -> Mapping[str, float]:
        """Return all sums by name, so that a metric is there before anything is counted."""
        with self._lock.here():
            return dict(self._sums)


class ReadsRows(Protocol):
    """Runs the queries of loaders where the rows are."""

    def execute(
        self,
        sql: str,
        args: Sequence[Any],
        on: object,
        *,
        shard: str | None,
        table: str | None,
        at_least: tuple[EventToken, ...] | None,
        server: ServerRole,
        prefer: Mapping[str, str],
    ) -> FreshRows:
        """Run a query; UsageError where the shard is not clear. `prefer`: a server, by shard."""

    def check(self) -> CacheFindings:
        """Return the preflight's findings on all servers that can be asked."""


class Readers:
    """The readers of a keyspace, by shard name; their key ranges do not overlap.

    `vindex` is the function that places rows, for queries that name a value (`on=`).
    """

    def __init__(self, readers: Mapping[str, Reader], vindex: str) -> None:
        """Check them; UsageError if two overlap or there is none."""
        if not readers:
            raise UsageError("a cache needs the reader of at least one shard")
        self._readers = dict(readers)
        self._ranges = {shard: ShardName.parse(shard).key_range for shard in readers}
        self._vindex = vindex_named(vindex)
        for shard, key_range in self._ranges.items():
            for other, other_range in self._ranges.items():
                if shard < other and key_range.overlaps(other_range):
                    raise UsageError(
                        f"the readers of shards {shard} and {other} overlap: name those that serve"
                    )

    def shard_of(self, on: object, shard: str | None) -> str:
        """Return the shard that was named, or the one that has a value's keyspace id.

        UsageError if there is no reader of it, or neither was given and there are several shards.
        """
        if shard is not None:
            if shard not in self._readers:
                raise UsageError(f"no reader of shard {shard}: {self._names()}")
            return shard
        if on is None:
            if len(self._readers) > 1:
                raise UsageError(
                    f"a read of one of several shards ({self._names()}) takes on=, the value of "
                    "the sharding column, or shard=, a name"
                )
            return next(iter(self._readers))
        keyspace_id = self._vindex.keyspace_id(on)  # type: ignore[arg-type]  # it checks the type
        for name, key_range in self._ranges.items():
            if key_range.contains(keyspace_id):
                return name
        raise UsageError(
            f"no reader of the shard with keyspace id {keyspace_id.hex()}: {self._names()}"
        )

    def execute(
        self,
        sql: str,
        args: Sequence[Any],
        on: object,
        *,
        shard: str | None,
        table: str | None,
        at_least: tuple[EventToken, ...] | None,
        server: ServerRole,
        prefer: Mapping[str, str],
    ) -> FreshRows:
        """See ReadsRows."""
        if table is not None:
            raise UsageError(
                "table= is for a cache with a KeyspaceReader: this one places all rows by one "
                "vindex"
            )
        shard = self.shard_of(on, shard)
        return self._readers[shard].execute(
            sql, args, at_least=at_least, server=server, prefer=prefer.get(shard)
        )

    def check(self) -> CacheFindings:
        """See ReadsRows."""
        found = CacheFindings()
        for reader in self._readers.values():
            if isinstance(reader, Checkable):
                found.add(reader.check())
        return found

    def _names(self) -> str:
        return "the readers are of " + ", ".join(sorted(self._readers))


class FollowingReads:
    """The reader of a keyspace, which follows its reshards."""

    def __init__(self, reader: RoutedReader) -> None:
        """Read through it."""
        self._reader = reader

    def execute(
        self,
        sql: str,
        args: Sequence[Any],
        on: object,
        *,
        shard: str | None,
        table: str | None,
        at_least: tuple[EventToken, ...] | None,
        server: ServerRole,
        prefer: Mapping[str, str],
    ) -> FreshRows:
        """See ReadsRows."""
        if shard is not None:
            raise UsageError(
                f"shard={shard}: a KeyspaceReader picks the shards itself. Pass on=, the value of "
                "the sharding column"
            )
        return self._reader.execute(
            sql, args, on=on, table=table, at_least=at_least, server=server, prefer=prefer
        )

    def check(self) -> CacheFindings:
        """See ReadsRows."""
        return self._reader.check()


def reads_of(readers: Mapping[str, Reader] | RoutedReader, vindex: str | None) -> ReadsRows:
    """Return how loaders read: by a reader of each shard and one vindex, or by one that knows both.

    `vindex` None is "hash". UsageError on readers or a vindex that cannot be used.
    """
    if isinstance(readers, Mapping):
        return Readers(readers, vindex or "hash")
    if vindex is not None:
        raise UsageError(f"vindex={vindex}: a KeyspaceReader has the vindexes of the topology")
    return FollowingReads(readers)


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
        """Note the token of a read; a read without a token leaves the value unproven."""
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
    before = _LOADING.get()
    try:
        _LOADING.set(recorder)
        yield
    finally:
        _LOADING.set(before)


def writes_of(newer_than: Writes | None) -> tuple[EventToken, ...]:
    """Return the writes that a value has to hold; within a loader also those of its own value.

    A value that a loader takes from a cache is older than its reads, so its own is not cached.
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
    the sharding column, `shard` the name of a shard; a keyspace of one shard needs neither. A
    cache with a KeyspaceReader takes no `shard`, and `table`, database.table, where tables of the
    keyspace have different vindexes.
    """

    def __init__(
        self,
        readers: ReadsRows,
        recorder: Recorder,
        counters: Counters,
        server: ServerRole,
        prefer: Mapping[str, str],
    ) -> None:
        self._readers = readers
        self._recorder = recorder
        self._counters = counters
        self._server = server
        self._prefer = prefer  # by shard, the server that is asked first

    def __call__(
        self,
        sql: str,
        *args: Any,
        on: object = None,
        shard: str | None = None,
        table: str | None = None,
    ) -> Sequence[Any]:
        """Run a query; UsageError where the shard is not clear, Stale, or the driver's errors.

        NotServing with a KeyspaceReader, while a switch of the row's shard does not end.
        """
        self._recorder.begin()
        return self._execute(sql, args, on, shard, table).rows

    def run_loader(self, loader: Callable[..., object], *args: object) -> object:
        """Call a loader, whose reads from caches are recorded as well."""
        with recording(self._recorder):
            return loader(self, *args)

    def _execute(
        self, sql: str, args: Sequence[Any], on: object, shard: str | None, table: str | None
    ) -> FreshRows:
        at_least = self._recorder.newer_than or None
        rows = self._readers.execute(
            sql,
            args,
            on,
            shard=shard,
            table=table,
            at_least=at_least,
            server=self._server,
            prefer=self._prefer,
        )
        if at_least is not None:
            self._counters.add("own_write_reads")
            self._counters.add("own_write_primary", rows.is_primary)
            self._counters.add("own_write_waits", rows.has_waited)
        if rows.token is not None and not rows.is_primary:
            self._recorder.replicas[rows.token.shard] = rows.server
        self._recorder.add(rows.token)
        return rows


class AsyncRead(Read):
    """`Read` for asyncio: the query runs in a thread, because drivers block."""

    async def __call__(  # type: ignore[override]  # the same call, awaited
        self,
        sql: str,
        *args: Any,
        on: object = None,
        shard: str | None = None,
        table: str | None = None,
    ) -> Sequence[Any]:
        """Run a query; see `Read`."""
        self._recorder.begin()
        rows = await asyncio.to_thread(self._execute, sql, args, on, shard, table)
        return rows.rows

    async def run_loader(self, loader: Callable[..., Any], *args: object) -> object:
        """See `Read.run_loader`."""
        with recording(self._recorder):
            return await loader(self, *args)
