"""The cache for asyncio."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from caching.client.answers import Answer, Found, Missed, Value
from caching.client.flights import AsyncFlights
from caching.client.keys import KeyTemplate
from caching.client.reads import AsyncRead, Recorder, Writes, recording, writes_of
from caching.client.shell import Shell, flight_of
from caching.client.steps import Load, Loaded, Pause, Step, Steps, StoreCalls
from caching.errors import StoreError
from caching.findings import Findings
from caching.stores.store import AsyncStore
from event_token import EventToken

P = ParamSpec("P")
T = TypeVar("T")

AsyncLoader = Callable[[AsyncRead], Awaitable[object]]
AsyncManyLoader = Callable[[AsyncRead, Sequence[str]], Awaitable[Mapping[str, object]]]


class AsyncCache(Shell[AsyncStore]):
    """`Cache` for asyncio: loaders are coroutine functions, and `read` is awaited.

    One event loop uses it. Readers run in threads, because drivers block. A load goes on when the
    task that asked first is cancelled, for others may wait for it.
    """

    def _begin(self) -> None:
        self._flights = AsyncFlights[Value]()

    async def get_or_load(
        self, key: str, load: AsyncLoader, *, newer_than: Writes | None = None
    ) -> Any:
        """Return the value of a key, or load it: `await load(read)` gives it, or None.

        See `Cache.get_or_load`.
        """
        writes = writes_of(newer_than)
        found = await self._run(self._core.find(key, writes), None)
        if isinstance(found, Found):
            return found.value

        async def load_one(read: AsyncRead, _: Sequence[str]) -> Mapping[str, object]:
            return {key: await load(read)}

        steps = functools.partial(self._core.load, key, found, writes)
        value, is_shared = await self._flights.share(
            flight_of(key, found, writes), lambda: self._run(steps(), load_one)
        )
        if is_shared:
            self._core.counters.add("shared_loads")
        return self._core.decode(key, value)

    async def get_or_stale(
        self, key: str, load: AsyncLoader, *, newer_than: Writes | None = None
    ) -> Answer:
        """Return a value, or one that was removed lately. See `Cache.get_or_stale`."""
        writes = writes_of(newer_than)
        [found] = await self._run(self._core.look_up((key,), writes), None)
        if isinstance(found, Found):
            return Answer(found.value)

        async def load_one(read: AsyncRead, _: Sequence[str]) -> Mapping[str, object]:
            return {key: await load(read)}

        value = await self._run(self._core.load(key, found, writes, takes_stale=True), load_one)
        return Answer(self._core.decode(key, value), value.is_stale)

    async def get_many(
        self, keys: Iterable[str], load_many: AsyncManyLoader, *, newer_than: Writes | None = None
    ) -> dict[str, Any]:
        """Return the values of several keys, in their order. See `Cache.get_many`."""
        wanted = list(dict.fromkeys(keys))
        writes = writes_of(newer_than)
        answers = await self._run(self._core.look_up(wanted, writes), None) if wanted else []
        found = dict(zip(wanted, answers, strict=True))
        missed = {key: each for key, each in found.items() if isinstance(each, Missed)}
        loaded: dict[str, Value] = {}
        if missed:
            loaded = await self._run(self._core.load_many(missed, writes), load_many)
        return {
            key: each.value if isinstance(each, Found) else self._core.decode(key, loaded[key])
            for key, each in found.items()
        }

    async def preflight(self) -> list[str]:
        """Ask the store and all servers of the readers. See `Cache.preflight`."""
        store: Findings | StoreError
        try:
            store = await self._store.check()
        except StoreError as error:
            store = error
        return self._told(store, await asyncio.to_thread(self._readers.check))

    async def forget(self, *keys: str) -> bool:
        """Delete the values of keys, which is always safe; tell whether the store did."""
        return await self._run(self._core.forget(keys), None)

    async def invalidate(self, keys: Iterable[str], token: EventToken) -> bool:
        """Apply a write of one's own right after its commit. See `Cache.invalidate`."""
        return await self._run(self._core.invalidate(keys, token), None)

    async def close(self) -> None:
        """Close the store's connections. See `Cache.close`."""
        await self._store.close()

    def cached(
        self, key: str
    ) -> "Callable[[Callable[Concatenate[AsyncRead, P], Awaitable[T]]], AsyncCached[P, T]]":
        """Decorate a loader: `@cache.cached("user:{user_id}")` over `async def user(read, ...)`."""
        return lambda loader: AsyncCached(self, key, loader)

    async def _run(self, steps: Steps[T], load: AsyncManyLoader | None) -> T:
        answer: object = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                return cast("T", done.value)
            answer, error = None, None
            try:
                answer = await self._perform(step, load)
            except Exception as raised:  # noqa: BLE001 - the steps handle it, or raise it again
                error = raised

    async def _perform(self, step: Step, load: AsyncManyLoader | None) -> object:
        if isinstance(step, Load):
            if load is None:
                raise AssertionError("this step comes only where there is a loader")
            recorder = Recorder(step.newer_than)
            read = AsyncRead(self._readers, step, recorder, self._core.counters)
            with recording(recorder):
                values = await load(read, step.keys)
            return Loaded(values, recorder.tokens(), recorder.replicas)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        if isinstance(step, StoreCalls):
            return await self._store.together(step.method, step.arguments)
        return await getattr(self._store, step.method)(*step.arguments)


class AsyncCached(Generic[P, T]):
    """A loader with a cache before it; it is called without `read`, and awaited."""

    def __init__(
        self,
        cache: AsyncCache,
        key: str,
        loader: Callable[Concatenate[AsyncRead, P], Awaitable[T]],
    ) -> None:
        """UsageError if the key does not name the loader's arguments."""
        self._cache = cache
        self._loader = loader
        self._template = KeyTemplate(key, loader)
        functools.update_wrapper(cast("Callable[..., object]", self), loader)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value for these arguments; as `AsyncCache.get_or_load`."""
        return await self.newer_than(())(*args, **kwargs)

    def newer_than(self, writes: Writes) -> Callable[P, Awaitable[T]]:
        """Return the same function for values that hold these writes."""

        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            found = await self._cache.get_or_load(
                self.key(*args, **kwargs),
                lambda read: self._loader(read, *args, **kwargs),
                newer_than=writes,
            )
            return cast("T", found)

        return call

    async def or_stale(self, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Return the value for these arguments; as `AsyncCache.get_or_stale`."""
        return await self._cache.get_or_stale(
            self.key(*args, **kwargs), lambda read: self._loader(read, *args, **kwargs)
        )

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the cache key of a call, for `forget` and `invalidate`."""
        return self._template.key(args, kwargs)
