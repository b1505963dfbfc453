"""What happens in the demo while the load goes on: the steps, what visitors see, and the checks."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from redis import Redis

from event_token.errors import Halt
from shardstream.demo.cached.catalogue import keys_of, product_key
from shardstream.demo.cached.invalidation import Invalidation
from shardstream.demo.cached.load import QUIET, Load, view
from shardstream.demo.cached.replicas import LAG_S
from shardstream.demo.cached.shop_cache import Answer, ShopCache
from shardstream.demo.sharded_writes import ShardDirectory, ShopSession
from shardstream.demo.shop import Connect

# The steps take place on a shard that is not split, so that its replica lags all the time.
SHARD: Final = "-80"
# A visitor who presses reload.
RELOAD_S: Final = 0.01
# Beyond the moment when the replica has the change, so that its last old answer is seen.
WATCH_S: Final = LAG_S + 1.5
# How far back the killed invalidator is started.
BACK_S: Final = 10
# Everything here takes a second or two; this is for a busy machine.
STEP_S_MAX: Final = 120.0


class Seen(NamedTuple):
    """One answer, and when it came after the commit."""

    after_ms: int
    answer: Answer


@dataclass
class World:
    """What the steps act on.

    `caches`: shardstream's is the first. `followers`: those whose entries
    `invalidation` removes.
    """

    directory: ShardDirectory
    load: Load
    caches: Sequence[ShopCache]
    followers: Sequence[ShopCache]
    invalidation: Invalidation
    primaries: Mapping[str, Connect]
    redis: "Redis"
    report: Callable[[str], None]
    check: Callable[[], None]
    problems: list[str] = field(default_factory=list)

    def view(self, cache: ShopCache, key: str, cookie: str = "") -> Answer:
        """Look at a page."""
        answer: Answer = view(cache, key, self.directory, cookie)
        return answer

    def sell(self, product_id: int) -> float:
        """Sell a piece of a product; return the moment after the commit."""
        with closing(ShopSession(self.directory, self.primaries)) as session:
            session.commit(self.load.catalogue_of(product_id).sale(product_id))
        committed_s = time.monotonic()
        self.load.wrote(product_id)
        return committed_s

    def cache_all(self, keys: Iterable[str], doing: str) -> int:
        """Look at pages until all caches have them; return how often the database was read."""
        missing = [(cache, key) for cache in self.caches for key in keys]
        loads = 0

        def are_cached() -> bool:
            nonlocal loads
            missing[:] = [
                (cache, key) for cache, key in missing if self.view(cache, key).origin != "cache"
            ]
            loads += len(missing)
            return not missing

        self.wait(are_cached, f"{doing}, some pages are not cached")
        return loads

    def wait(self, done: Callable[[], bool], problem: str) -> None:
        """Wait for something. Halt with `problem` if it does not happen."""
        deadline_s = time.monotonic() + STEP_S_MAX
        while not done():
            self.check()
            if time.monotonic() > deadline_s:
                raise Halt(f"{problem}, after {STEP_S_MAX:.0f} s")
            time.sleep(RELOAD_S)

    @property
    def fresh(self) -> ShopCache:
        """Shardstream's cache."""
        return self.caches[0]

    def wait_removed(self, key: str) -> None:
        """Wait until the change stream has removed a page that nobody looks at."""
        for cache in self.followers:
            is_removed = partial(_lacks, cache, key)
            self.wait(is_removed, f"{cache.name}: {key} is not removed")

    @property
    def quiet_keys(self) -> list[str]:
        """The pages that only the steps change."""
        return sorted({key for product_id in QUIET for key in keys_of(product_id)})

    def quiet_products(self, shard: str) -> list[int]:
        """The products of a shard that only the steps change."""
        return [each for each in QUIET if self.directory.shard_of(each) == shard]


def price_changes(world: World) -> None:
    """(a) and (c): somebody buys, and another visitor reloads the page all the time."""
    product_id = world.quiet_products(SHARD)[0]
    key = product_key(product_id)
    world.cache_all([key], "before the sale")
    old = {cache.name: price_on(world.view(cache, key)) for cache in world.caches}
    committed_s = world.sell(product_id)
    new = str(world.load.catalogue_of(product_id).price(product_id))
    seen: dict[str, list[Seen]] = {cache.name: [] for cache in world.caches}
    fresh = seen[world.fresh.name]

    def is_watched() -> bool:
        for cache in world.caches:
            answer = world.view(cache, key)
            seen[cache.name].append(Seen(_ms_since(committed_s), answer))
        has_replica = time.monotonic() - committed_s > WATCH_S
        return has_replica and fresh[-1].answer.origin == "cache" and _is_new(fresh[-1], new)

    world.wait(is_watched, f"(a) {world.fresh.name} does not come to cache the new price")
    world.report(f"(a) a sale changes the price of {key}; another visitor keeps reloading the page")
    for name, answers in seen.items():
        world.report(f"    {name}: {_told(answers, old[name], new)}")
    world.problems += returns(fresh, new)


def returns(seen: Sequence[Seen], new: str) -> list[str]:
    """Return what is wrong with the answers of shardstream's cache after a change of the price."""
    problems = []
    is_removed = False
    for _, answer in seen:
        is_removed = is_removed or answer.origin != "cache"
        if is_removed and answer.origin == "cache" and price_on(answer) != new:
            problems.append("(a) the cache answered with the old price after it was removed")
    last = seen[-1].answer
    if last.origin != "cache" or price_on(last) != new:
        problems.append(f"(a) the last answer is {price_on(last)} ({last.origin}), not {new}")
    return problems


def _is_new(seen: Seen, new: str) -> bool:
    return price_on(seen.answer) == new


def price_on(answer: Answer) -> str:
    """Return the price on a product's page."""
    return str(answer.page["price"])


def _told(seen: Sequence[Seen], old: str, new: str) -> str:
    """Return the answers as a visitor saw them, repeated ones together."""
    parts = []
    for (origin, price), group in groupby(
        seen, lambda each: (each.answer.origin, price_on(each.answer))
    ):
        answers = list(group)
        word = "new" if price == new else "old" if price == old else "another"
        times = f" x{len(answers)}" if len(answers) > 1 else ""
        parts.append(f"{word} {price} ({origin}){times} at {answers[0].after_ms} ms")
    return ", ".join(parts)


def buyer_returns(world: World) -> None:
    """(b): the buyer's next page view, with the cookie of the write."""
    product_id = world.quiet_products(SHARD)[1]
    key = product_key(product_id)
    world.cache_all([key], "before the sale")
    catalogue = world.load.catalogue_of(product_id)
    change = catalogue.sale(product_id)
    with closing(world.primaries[SHARD]()) as connection:
        with connection.cursor() as cursor:
            for statement, rows in change.statements:
                cursor.executemany(statement, rows)
        connection.commit()
        cookies = {c.name: c.cookie_after(SHARD, connection) for c in world.caches}
    committed_s = time.monotonic()
    world.load.wrote(product_id)
    new = str(catalogue.price(product_id))
    world.report(f"(b) the buyer's own next view of {key}")
    for cache in world.caches:
        cookie = cookies[cache.name]
        answer = world.view(cache, key, cookie)
        word = "new" if price_on(answer) == new else "OLD"
        held = f", with a cookie of {len(cookie)} characters" if cookie else ""
        told = f"{word} price ({answer.origin}) after {_ms_since(committed_s)} ms{held}"
        world.report(f"    {cache.name}: {told}")
        if cache is world.fresh and word != "new":
            world.problems.append("(b) the buyer did not see the own write")


def invalidator_is_killed(world: World) -> None:
    """(d): the invalidator is killed, and later starts ten seconds back."""
    product_id = world.quiet_products(SHARD)[2]
    key = product_key(product_id)
    world.cache_all(world.quiet_keys, "before the kill")
    watched = [each for each in world.quiet_keys if each not in keys_of(product_id)]
    before = world.fresh.stored(watched)
    world.invalidation.kill()
    world.sell(product_id)
    world.invalidation.start(BACK_S)
    world.wait_removed(key)
    after = world.fresh.stored(watched)
    kept = sum(after.get(name) == stored for name, stored in before.items())
    world.report(
        f"(d) invalidator killed, and started {BACK_S} s back: {kept} of {len(watched)} entries of "
        "rows that did not change are still the same bytes"
    )
    if kept < len(watched):
        world.problems.append(f"(d) {len(watched) - kept} entries have changed")


def everything_is_flushed(world: World) -> None:
    """(e): FLUSHALL."""
    began_s = time.monotonic()
    world.redis.flushall()
    loads = world.cache_all(world.quiet_keys, "after FLUSHALL")
    world.report(
        f"(e) FLUSHALL: {len(world.quiet_keys)} pages are cached again after "
        f"{time.monotonic() - began_s:.1f} s and {loads} reads of the database"
    )


def _lacks(cache: ShopCache, key: str) -> bool:
    return key not in cache.stored([key])


def _ms_since(then_s: float) -> int:
    return round((time.monotonic() - then_s) * 1000)
