"""The cache for threads."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from caching.client.answers import Answer, Found, Missed, Value
from caching.client.flights import Flights
from caching.client.keys import KeyTemplate
from caching.client.reads import Read, Recorder, Writes, recording, writes_of
from caching.client.shell import Shell, flight_of
from caching.client.steps import Load, Loaded, Pause, Step, Steps, StoreCalls
from caching.errors import StoreError
from caching.findings import Findings
from caching.stores.store import Store
from event_token import EventToken

P = ParamSpec("P")
T = TypeVar("T")

Loader = Callable[[Read], object]
ManyLoader = Callable[[Read, Sequence[str]], Mapping[str, object]]


class Cache(Shell[Store]):
    """Values by key, from a store where they are proven to be fresh, else from the database.

    `store` has the cache's layout. `readers` has a FreshReader for each shard that serves, by
    name; replace `readers` after a reshard. `codec`: json, msgspec, pickle, or a Codec. `vindex`
    places the values that loaders read by (`on=`). After `primary_after` refused fills in a row a
    key is read from its primary. `prefer`: "fresh" asks the replica first whose read was last
    filled in, "listed" the first of the reader's list. Safe to use from several threads.

    No call raises what a store raises: without the store, loaders are called and nothing is
    cached. Errors are the loader's own, and UsageError on values that the codec cannot encode.
    """

    def _begin(self) -> None:
        self._flights = Flights[Value]()

    def get_or_load(self, key: str, load: Loader, *, newer_than: Writes | None = None) -> Any:
        """Return the value of a key, or load it: `load(read)` returns it, or None.

        None (no such row) is cached, too. The value is what the codec makes of it, so a hit and a
        miss return the same. `newer_than`: writes that the value has to hold, such as those of a
        session; Stale if no server holds them. What a loader does not read through `read` is not
        known to the cache: a loader that never calls it, or that asks a cache, gets nothing cached.
        """
        writes = writes_of(newer_than)
        found = self._run(self._core.find(key, writes), None)
        if isinstance(found, Found):
            return found.value
        steps = functools.partial(self._core.load, key, found, writes)
        value, is_shared = self._flights.share(
            flight_of(key, found, writes),
            lambda: self._run(steps(), lambda read, _: {key: load(read)}),
        )
        if is_shared:
            self._core.counters.add("shared_loads")
        return self._core.decode(key, value)

    def get_or_stale(self, key: str, load: Loader, *, newer_than: Writes | None = None) -> Answer:
        """Return the value of a key as `get_or_load` does, or one that was removed lately, marked.

        A stale value is returned where `get_or_load` would wait for another caller's load. The
        cache and its invalidator need `stale_ok_s`, and the cache `lease_ms`.
        """
        writes = writes_of(newer_than)
        [found] = self._run(self._core.look_up((key,), writes), None)
        if isinstance(found, Found):
            return Answer(found.value)
        value = self._run(
            self._core.load(key, found, writes, takes_stale=True),
            lambda read, _: {key: load(read)},
        )
        return Answer(self._core.decode(key, value), value.is_stale)

    def get_many(
        self, keys: Iterable[str], load_many: ManyLoader, *, newer_than: Writes | None = None
    ) -> dict[str, Any]:
        """Return the values of several keys, in their order.

        `load_many(read, missing)` returns values by key for those that were no hits; a key that it
        leaves out has no row. All of them are held to have been made of everything that it reads.
        """
        wanted = list(dict.fromkeys(keys))
        writes = writes_of(newer_than)
        answers = self._run(self._core.look_up(wanted, writes), None) if wanted else []
        found = dict(zip(wanted, answers, strict=True))
        missed = {key: each for key, each in found.items() if isinstance(each, Missed)}
        loaded = self._run(self._core.load_many(missed, writes), load_many) if missed else {}
        return {
            key: each.value if isinstance(each, Found) else self._core.decode(key, loaded[key])
            for key, each in found.items()
        }

    def preflight(self) -> list[str]:
        """Ask the store and all servers of the readers whether they are as a cache needs them.

        For the start of an application. Returns warnings, among them a store that does not answer.
        UsageError lists all problems, each with its fix.
        """
        store: Findings | StoreError
        try:
            store = self._store.check()
        except StoreError as error:
            store = error
        return self._told(store, self._readers.check())

    def forget(self, *keys: str) -> bool:
        """Delete the values of keys, which is always safe; tell whether the store did."""
        return self._run(self._core.forget(keys), None)

    def invalidate(self, keys: Iterable[str], token: EventToken) -> bool:
        """Apply a write of one's own right after its commit; tell whether the store did.

        It shortens the time until others see the write, and is never needed for safety: the
        invalidator does the same when the change has come through the log.
        """
        return self._run(self._core.invalidate(keys, token), None)

    def close(self) -> None:
        """Close the store's connections; a store in memory is no longer invalidated."""
        self._store.close()

    def cached(self, key: str) -> "Callable[[Callable[Concatenate[Read, P], T]], Cached[P, T]]":
        """Decorate a loader: `@cache.cached("user:{user_id}")` over `def user(read, user_id)`.

        Callers leave out `read`. The key names every other argument.
        """
        return lambda loader: Cached(self, key, loader)

    def _run(self, steps: Steps[T], load: ManyLoader | None) -> T:
        answer: object = None
        error: Exception | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as done:
                return cast("T", done.value)
            answer, error = None, None
            try:
                answer = self._perform(step, load)
            except Exception as raised:  # noqa: BLE001 - the steps handle it, or raise it again
                error = raised

    def _perform(self, step: Step, load: ManyLoader | None) -> object:
        if isinstance(step, Load):
            if load is None:
                raise AssertionError("this step comes only where there is a loader")
            recorder = Recorder(step.newer_than)
            read = Read(self._readers, step, recorder, self._core.counters)
            with recording(recorder):
                values = load(read, step.keys)
            return Loaded(values, recorder.tokens(), recorder.replicas)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        if isinstance(step, StoreCalls):
            return self._store.together(step.method, step.arguments)
        return getattr(self._store, step.method)(*step.arguments)


class Cached(Generic[P, T]):
    """A loader with a cache before it; it is called without `read`."""

    def __init__(self, cache: Cache, key: str, loader: Callable[Concatenate[Read, P], T]) -> None:
        """UsageError if the key does not name the loader's arguments."""
        self._cache = cache
        self._loader = loader
        self._template = KeyTemplate(key, loader)
        functools.update_wrapper(cast("Callable[..., object]", self), loader)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value for these arguments; as `Cache.get_or_load`."""
        return self.newer_than(())(*args, **kwargs)

    def newer_than(self, writes: Writes) -> Callable[P, T]:
        """Return the same function for values that hold these writes."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            found = self._cache.get_or_load(
                self.key(*args, **kwargs),
                lambda read: self._loader(read, *args, **kwargs),
                newer_than=writes,
            )
            return cast("T", found)

        return call

    def or_stale(self, *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Return the value for these arguments; as `Cache.get_or_stale`."""
        return self._cache.get_or_stale(
            self.key(*args, **kwargs), lambda read: self._loader(read, *args, **kwargs)
        )

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the cache key of a call, for `forget` and `invalidate`."""
        return self._template.key(args, kwargs)
