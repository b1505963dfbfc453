"""The cache for threads, and the cache for asyncio.

Of the callers that miss one key at a time, one loads it and the others share (single flight). They
share only if they saw the same floor: a change that was applied meanwhile has changed the floor, so
nobody shares a load that began before it.
"""

import asyncio
import functools
import inspect
import re
import string
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

from caching.client.core import Core, FoundValue, Load, LoadedValue, Missed
from caching.client.options import CacheOptions, Codec, codec_named
from caching.client.reads import AsyncRead, Read, Writes, reads_of, writes_of
from caching.errors import CacheFindings, StoreError
from caching.protocol import CacheLayout
from caching.reading.reader import Reader, RoutedReader
from caching.steps import Call, Steps, run_steps, run_steps_async
from caching.stores.store import Store
from credentials.per_process import PerProcess
from event_token import EventToken
from event_token.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

# The calls that this thread or task is within: one that asks for itself must not wait for itself.
_WITHIN: ContextVar[frozenset[Hashable]] = ContextVar("shardstream_within", default=frozenset())


class Flights(Generic[T]):
    """Calls under way in threads."""

    def __init__(self) -> None:
        self._calls: PerProcess[dict[Hashable, Future[T]]] = PerProcess(dict)
        self._lock = PerProcess(Lock)

    def share(self, what: Hashable, call: Callable[[], T]) -> tuple[T, bool]:
        """Return what `call` returns or raises, and whether somebody else had called it.

        A call that ends by an interrupt is repeated by one of those who waited.
        """
        if what in _WITHIN.get():
            return call(), False
        calls, lock = self._calls.here(), self._lock.here()
        while True:
            mine: Future[T] = Future()
            try:
                with lock:
                    found = calls.setdefault(what, mine)
                    if found.done():  # it was left here by an interrupt
                        found = calls[what] = mine
                if found is mine:
                    return self._lead(what, mine, call), False
            finally:
                mine.cancel()  # only after an interrupt is it not done yet
                with lock:
                    if calls.get(what) is mine:
                        del calls[what]
            try:
                return found.result(), True
            except CancelledError:
                continue

    def _lead(self, what: Hashable, mine: Future[T], call: Callable[[], T]) -> T:
        before = _WITHIN.get()
        try:
            _WITHIN.set(before | {what})
            result = call()
            mine.set_result(result)
        except Exception as error:
            mine.set_exception(error)
            raise
        finally:
            _WITHIN.set(before)
        return result


class AsyncFlights(Generic[T]):
    """Calls under way in tasks of one event loop."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, asyncio.Task[T]] = {}

    async def share(
        self, what: Hashable, call: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[T, bool]:
        """Return what `call` returns or raises, and whether somebody else had called it.

        The call goes on when the task that began it is cancelled: others may wait for it.
        """
        if what in _WITHIN.get():
            return await call(), False
        task, is_first = self._calls.get(what), False
        if task is None:
            before = _WITHIN.set(_WITHIN.get() | {what})
            task, is_first = asyncio.create_task(call()), True
            _WITHIN.reset(before)
            task.add_done_callback(lambda done: self._end(what, done))
            self._calls[what] = task
        return await asyncio.shield(task), not is_first

    def _end(self, what: Hashable, task: asyncio.Task[T]) -> None:
        self._calls.pop(what, None)
        if not task.cancelled():
            task.exception()  # read here, in case that nobody waits any more


Loader = Callable[[Read], object]
ManyLoader = Callable[[Read, Sequence[str]], Mapping[str, object]]
AsyncLoader = Callable[[AsyncRead], Awaitable[object]]
AsyncManyLoader = Callable[[AsyncRead, Sequence[str]], Awaitable[Mapping[str, object]]]

# Which replica is asked first: the one whose read was last filled in, or the first of the list.
Prefer = Literal["fresh", "listed"]
# Refused fills of a key in a row after which its primary is read.
PRIMARY_AFTER = 3

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class MaybeStale:
    """A value for a caller that takes stale ones; `is_stale`: a change of it was applied since."""

    value: Any
    is_stale: bool = False


class CacheBase:
    """A store, its readers, and what both kinds of caches do with them, as steps."""

    is_async: ClassVar[bool]
    _read_class: ClassVar[type[Read]]

    def __init__(
        self,
        store: Store,
        readers: Mapping[str, Reader] | RoutedReader,
        options: CacheOptions = CacheOptions(),  # noqa: B008 - frozen
        *,
        codec: str | Codec = "json",
        vindex: str | None = None,
        primary_after: int = PRIMARY_AFTER,
        prefer: Prefer = "fresh",
    ) -> None:
        """Check the arguments; nothing is connected. UsageError on a store of the other kind."""
        if store.is_async not in {None, self.is_async}:
            opener = "open_store(..., is_async=True)" if self.is_async else "open_store"
            raise UsageError(
                f"{type(self).__name__} {store.layout.cache}: its store was opened for "
                f"{'threads' if self.is_async else 'asyncio'}. Fix: open it with {opener}"
            )
        self._store = store
        self._vindex = vindex
        self._run: Callable[[Steps[Any]], Any] = run_steps_async if self.is_async else run_steps
        self._flights: Flights[LoadedValue] | AsyncFlights[LoadedValue] = (
            AsyncFlights() if self.is_async else Flights()
        )
        self._core = Core(
            store,
            reads_of(readers, vindex),
            options,
            codec_named(codec),
            read_class=self._read_class,
            sleep=asyncio.sleep if self.is_async else time.sleep,
            primary_after=primary_after,
            prefers_fresh=prefer == "fresh",
        )

    def set_readers(self, readers: Mapping[str, Reader] | RoutedReader) -> None:
        """Replace the readers, after a reshard: those of the shards that serve now.

        A KeyspaceReader follows reshards by itself.
        """
        self._core.readers = reads_of(readers, self._vindex)

    def counters(self) -> Mapping[str, float]:
        """Return the sums since the cache was made, by name."""
        return self._core.counters.read()

    def _get(self, key: str, load: Callable[..., object], newer_than: Writes | None) -> Steps[Any]:
        writes = writes_of(newer_than)
        found = yield from self._core.find(key, writes)
        if isinstance(found, FoundValue):
            return found.value
        # Callers that saw another floor do not share a load.
        flight = (key, found.state and found.state.floor, writes)
        make = functools.partial(self._core.load, key, found, writes, _one(key, load))
        value, is_shared = yield Call(self._flights.share, (flight, lambda: self._run(make())))
        if is_shared:
            self._core.counters.add("shared_loads")
        return self._core.decode(key, value)

    def _get_stale(
        self, key: str, load: Callable[..., object], newer_than: Writes | None
    ) -> Steps[MaybeStale]:
        writes = writes_of(newer_than)
        [found] = yield from self._core.look_up((key,), writes)
        if isinstance(found, FoundValue):
            return MaybeStale(found.value)
        one = _one(key, load)
        value = yield from self._core.load(key, found, writes, one, takes_stale=True)
        return MaybeStale(self._core.decode(key, value), value.is_stale)

    def _get_many(
        self, keys: Iterable[str], load_many: Callable[..., object], newer_than: Writes | None
    ) -> Steps[dict[str, Any]]:
        wanted = list(dict.fromkeys(keys))
        writes = writes_of(newer_than)
        answers = (yield from self._core.look_up(wanted, writes)) if wanted else []
        found = dict(zip(wanted, answers, strict=True))
        missed = {key: each for key, each in found.items() if isinstance(each, Missed)}
        loaded: dict[str, LoadedValue] = {}

        def load(read: Read) -> Steps[Mapping[str, object]]:
            values: Mapping[str, object] = yield Call(read.run_loader, (load_many, tuple(missed)))
            return values

        if missed:
            loaded = yield from self._core.load_many(missed, writes, load)
        return {
            key: each.value if isinstance(each, FoundValue) else self._core.decode(key, loaded[key])
            for key, each in found.items()
        }

    def _preflight(self) -> Steps[list[str]]:
        found = CacheFindings()
        try:
            store = yield from self._store.check()
        except StoreError as error:  # the cache works again once it answers
            found.warnings.append(f"{error}. Fix: start it, or correct its URL")
        else:
            found.add(store).add(_layout_findings(store.layout, self._store.layout))
        check = self._core.readers.check
        readers: CacheFindings = (
            yield Call(asyncio.to_thread, (check,)) if self.is_async else Call(check)
        )
        found.add(readers).refuse(f"cache {self._store.layout.cache}")
        return found.warnings


class CacheClient(CacheBase):
    """Values by key, from a store where they are proven to be fresh, else from the database.

    `store` has the cache's layout. `readers`: a KeyspaceReader, or a FreshReader for each shard
    that serves, by name, which have to be replaced after a reshard. `codec`: json, msgspec, pickle,
    or a Codec. `vindex` places the values that loaders read by (`on=`), by the function "hash" if
    it is None; a KeyspaceReader takes none. After `primary_after` refused fills in a row a key is
    read from its primary. `prefer`: "fresh" asks the replica first whose read was last
    filled in, "listed" the first of the reader's list. Safe to use from several threads.

    No call raises a store's errors: without the store, loaders are called and nothing is cached.
    Errors are the loader's own, and UsageError on values that the codec cannot encode.
    """

    is_async = False
    _read_class = Read

    def get_or_load(self, key: str, load: Loader, *, newer_than: Writes | None = None) -> Any:
        """Return the value of a key, or load it: `load(read)` returns it, or None.

        None (no such row) is cached, too. The value is what the codec makes of it, so a hit and a
        miss return the same. `newer_than`: writes that the value has to hold, such as those of a
        session; Stale if no server holds them. What a loader does not read through `read` is not
        known to the cache: a loader that never calls it, or that asks a cache, gets nothing cached.
        """
        return run_steps(self._get(key, load, newer_than))

    def get_or_stale(
        self, key: str, load: Loader, *, newer_than: Writes | None = None
    ) -> MaybeStale:
        """Return the value of a key as `get_or_load` does, or one that was removed lately, marked.

        A stale value is returned where `get_or_load` would wait for another caller's load. The
        cache and its invalidator need `stale_ok_s`, and the cache `lease_ms`.
        """
        return run_steps(self._get_stale(key, load, newer_than))

    def get_many(
        self, keys: Iterable[str], load_many: ManyLoader, *, newer_than: Writes | None = None
    ) -> dict[str, Any]:
        """Return the values of several keys, in their order.

        `load_many(read, missing)` returns values by key for those that were no hits; a key that it
        leaves out has no row. All of them are held to have been made of everything that it reads.
        """
        return run_steps(self._get_many(keys, load_many, newer_than))

    def preflight(self) -> list[str]:
        """Ask the store and all servers of the readers whether they are as a cache needs them.

        For the start of an application. Returns warnings, among them a store that does not answer.
        UsageError lists all problems, each with its fix.
        """
        return run_steps(self._preflight())

    def forget(self, *keys: str) -> bool:
        """Delete the values of keys, which is always safe; return whether the store did."""
        return run_steps(self._core.forget(keys))

    def invalidate(self, keys: Iterable[str], token: EventToken) -> bool:
        """Apply a write of one's own right after its commit; return whether the store did.

        It shortens the time until others see the write, and is never needed for safety: the
        invalidator does the same when the change has come through the log.
        """
        return run_steps(self._core.invalidate(keys, token))

    def close(self) -> None:
        """Close the store's connections; a store in memory is no longer invalidated."""
        run_steps(self._store.close())

    def cached(
        self, key: str
    ) -> "Callable[[Callable[Concatenate[Read, P], T]], Cached[P, T, MaybeStale]]":
        """Decorate a loader: `@cache.cached("user:{user_id}")` over `def user(read, user_id)`.

        Callers leave out `read`. The key names every other argument.
        """
        return lambda loader: Cached(self, key, loader)


class AsyncCacheClient(CacheBase):
    """`Cache` for asyncio: loaders are coroutine functions, and `read` is awaited.

    One event loop uses it. Readers run in threads, because drivers block. A load goes on when the
    task that asked first is cancelled, for others may wait for it.
    """

    is_async = True
    _read_class = AsyncRead

    async def get_or_load(
        self, key: str, load: AsyncLoader, *, newer_than: Writes | None = None
    ) -> Any:
        """Return the value of a key, or load it: `await load(read)` gives it, or None.

        See `Cache.get_or_load`.
        """
        return await run_steps_async(self._get(key, load, newer_than))

    async def get_or_stale(
        self, key: str, load: AsyncLoader, *, newer_than: Writes | None = None
    ) -> MaybeStale:
        """Return a value, or one that was removed lately. See `Cache.get_or_stale`."""
        return await run_steps_async(self._get_stale(key, load, newer_than))

    async def get_many(
        self, keys: Iterable[str], load_many: AsyncManyLoader, *, newer_than: Writes | None = None
    ) -> dict[str, Any]:
        """Return the values of several keys, in their order. See `Cache.get_many`."""
        return await run_steps_async(self._get_many(keys, load_many, newer_than))

    async def preflight(self) -> list[str]:
        """Ask the store and all servers of the readers. See `Cache.preflight`."""
        return await run_steps_async(self._preflight())

    async def forget(self, *keys: str) -> bool:
        """Delete the values of keys, which is always safe; return whether the store did."""
        return await run_steps_async(self._core.forget(keys))

    async def invalidate(self, keys: Iterable[str], token: EventToken) -> bool:
        """Apply a write of one's own right after its commit. See `Cache.invalidate`."""
        return await run_steps_async(self._core.invalidate(keys, token))

    async def close(self) -> None:
        """Close the store's connections. See `Cache.close`."""
        await run_steps_async(self._store.close())

    def cached(
        self, key: str
    ) -> "Callable[[Callable[Concatenate[AsyncRead, P], Awaitable[T]]], AsyncCached[P, T]]":
        """Decorate a loader: `@cache.cached("user:{user_id}")` over `async def user(read, ...)`."""
        return lambda loader: AsyncCached(self, key, loader)


class Cached(Generic[P, T, A]):
    """A loader with a cache before it; it is called without `read`. `A`: see `or_stale`."""

    def __init__(
        self,
        cache: CacheClient | AsyncCacheClient,
        key: str,
        loader: Callable[Concatenate[Any, P], T],
    ) -> None:
        """UsageError if the key does not name the loader's arguments."""
        self._cache = cache
        self._loader = loader
        self._key = key
        self._signature = _checked_signature(key, loader)
        functools.update_wrapper(cast("Callable[..., object]", self), loader)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value for these arguments; as `Cache.get_or_load`."""
        return self.newer_than(())(*args, **kwargs)

    def newer_than(self, writes: Writes) -> Callable[P, T]:
        """Return the same function for values that hold these writes."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            key, load = self.key(*args, **kwargs), self._load(args, kwargs)
            return cast("T", self._cache.get_or_load(key, load, newer_than=writes))

        return call

    def or_stale(self, *args: P.args, **kwargs: P.kwargs) -> A:
        """Return the value for these arguments, marked if stale; as `Cache.get_or_stale`."""
        key, load = self.key(*args, **kwargs), self._load(args, kwargs)
        return cast("A", self._cache.get_or_stale(key, load))

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the cache key of a call, for `forget` and `invalidate`."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._key.format_map(bound.arguments)

    def _load(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[Any], Any]:
        return lambda read: self._loader(read, *args, **kwargs)


class AsyncCached(Cached[P, Awaitable[T], Awaitable[MaybeStale]]):
    """A loader for asyncio with a cache before it; it is awaited."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value for these arguments; as `AsyncCache.get_or_load`."""
        return await super().__call__(*args, **kwargs)


def _one(key: str, load: Callable[..., object]) -> Load:
    """Return the load of one key by its own loader."""

    def load_one(read: Read) -> Steps[Mapping[str, object]]:
        return {key: (yield Call(read.run_loader, (load,)))}

    return load_one


def _layout_findings(invalidators: str | None, layout: CacheLayout) -> CacheFindings:
    found = CacheFindings()
    if invalidators is None:
        found.warnings.append(
            "no invalidator has run on this store, so nothing is a hit. Fix: shardstream "
            f"invalidate KEYSPACE --cache {layout.cache}"
        )
    elif invalidators != layout.text:
        found.problems.append(
            f"its invalidator has the layout {invalidators}, this client {layout.text} (number of "
            "buckets, version, memcached servers): they share nothing, and nothing is a hit. Fix: "
            "give both the same settings"
        )
    return found


def _checked_signature(key: str, loader: Callable[..., object]) -> inspect.Signature:
    """Return a loader's signature without `read`; UsageError if the key leaves out an argument."""
    signature = inspect.signature(loader)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise UsageError(
            f"{loader.__qualname__}: a cached function takes `read` as its first argument"
        )
    signature = signature.replace(parameters=parameters[1:])
    fields = {name for _, name, _, _ in string.Formatter().parse(key) if name is not None}
    names = {re.split(r"[.[]", name)[0] for name in fields}
    arguments = set(signature.parameters)
    if names != arguments or not names:
        raise UsageError(
            f"{loader.__qualname__}: the key {key!r} must name each argument but the first "
            f"({', '.join(sorted(arguments)) or 'there is none'}), and nothing else, because calls "
            "with the same key share one value"
        )
    return signature
