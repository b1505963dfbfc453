"""`AsyncCache` behind the methods of `Cache`, so that one suite runs on both."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from caching.client.cache import AsyncCacheClient, MaybeStale
from caching.client.reads import AsyncRead, Writes
from event_token import EventToken
from tests.caching.client.model import Model

T = TypeVar("T")
AnyRead = Callable[..., Any]


class BlockingCache:
    """Runs each call in one event loop, and loaders in threads."""

    def __init__(self, model: Model, **choices: Any) -> None:
        self.cache = AsyncCacheClient(model.opened.raw, model.readers, model.options, **choices)
        self._loop = asyncio.new_event_loop()
        self.counters = self.cache.counters
        self.set_readers = self.cache.set_readers

    def get_or_load(
        self, key: str, load: Callable[[AnyRead], Any], *, newer_than: Writes | None = None
    ) -> Any:
        async def load_one(read: AsyncRead) -> Any:
            return await asyncio.to_thread(load, self._blocking(read))

        return self._run(self.cache.get_or_load(key, load_one, newer_than=newer_than))

    def get_or_stale(
        self, key: str, load: Callable[[AnyRead], Any], *, newer_than: Writes | None = None
    ) -> MaybeStale:
        async def load_one(read: AsyncRead) -> Any:
            return await asyncio.to_thread(load, self._blocking(read))

        return self._run(self.cache.get_or_stale(key, load_one, newer_than=newer_than))

    def get_many(
        self,
        keys: Iterable[str],
        load_many: Callable[[AnyRead, Sequence[str]], Mapping[str, Any]],
        *,
        newer_than: Writes | None = None,
    ) -> dict[str, Any]:
        async def load(read: AsyncRead, keys: Sequence[str]) -> Mapping[str, Any]:
            return await asyncio.to_thread(load_many, self._blocking(read), keys)

        return self._run(self.cache.get_many(keys, load, newer_than=newer_than))

    def forget(self, *keys: str) -> bool:
        return self._run(self.cache.forget(*keys))

    def invalidate(self, keys: Iterable[str], token: EventToken) -> bool:
        return self._run(self.cache.invalidate(keys, token))

    def _blocking(self, read: AsyncRead) -> AnyRead:
        def call(*args: Any, **kwargs: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(read(*args, **kwargs), self._loop).result()

        return call

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(call)
