"""Loaders with a cache before them."""

import asyncio
from typing import Any

import pytest

from caching.client.cache import AsyncCacheClient
from caching.client.reads import AsyncRead, Read
from event_token.errors import UsageError
from tests.caching.client.model import Model


def test_a_cached_function(model: Model) -> None:
    """It is called without `read`; arguments by name or by default give the same key."""
    cache = model.cache()

    @cache.cached("{row}:{digits}")
    def version(read: Read, row: str, digits: int = 1) -> str:
        """Give the version of a row."""
        return str(read(row, shard="-80")[0]).zfill(digits)

    assert version("r20") == version(row="r20", digits=1) == "1"
    assert version("r20", 3) == "001"
    assert version.key("r20") == "r20:1"
    assert version.__doc__ == "Give the version of a row."
    assert cache.counters()["hits"] == 1
    token = model.write("r20")
    assert version.newer_than(token)("r20") == "2"
    cache.invalidate([version.key("r20")], token)
    assert version("r20") == "2"


def test_a_cached_coroutine_function(model: Model) -> None:
    """The same with await."""

    async def run() -> None:
        cache = AsyncCacheClient(model.opened.raw, model.readers, model.options)

        @cache.cached("{row}")
        async def version(read: AsyncRead, row: str) -> int:
            rows: list[int] = list(await read(row, shard="-80"))
            return rows[0]

        assert await version("r20") == await version(row="r20") == 1
        assert version.key("r20") == "r20"
        assert cache.counters()["hits"] == 1
        assert await version.newer_than(model.write("r20"))("r20") == 2

        async def nested(read: AsyncRead) -> int:
            return await version("r20")

        assert await cache.get_or_load("outer", nested) == 2
        assert cache.counters()["fills_refused_uncovered"] == 1

    asyncio.run(run())


def test_keys_that_two_calls_would_share(model: Model) -> None:
    """A key that leaves an argument out, or names none, is refused where it stands."""
    cache = model.cache()

    def user(read: Read, user_id: int, lang: str) -> Any:
        return None

    def no_read() -> None:
        return None

    for key in ("user:{user_id}", "user", "{user_id}{lang}{read}", "{user_id}{lang}{0}"):
        with pytest.raises(UsageError, match="must name each argument but the first"):
            cache.cached(key)(user)
    with pytest.raises(UsageError, match="takes `read` as its first argument"):
        cache.cached("key")(no_read)  # type: ignore[arg-type]  # as a type checker says
