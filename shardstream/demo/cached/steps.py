"""The steps that take place while the load goes on: what visitors see, and the checks."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from statistics import median
from typing import Any, Final, NamedTuple

from redis import Redis

from caching.errors import TooOld
from caching.reading.fresh_reader import FreshReader
from shardstream.demo.cached.caches import PageView, ShopCache
from shardstream.demo.cached.catalogue import PRODUCTS, all_keys, keys_of, product_key
from shardstream.demo.cached.load import QUIET, ShopLoad, view
from shardstream.demo.cached.replicas import LAG_S, Replicas
from shardstream.demo.shop import DATABASE, ShopSession
from shardstream.demo.story import Story

# The steps take place on a shard that is not split, so that its replica lags all the time.
SHARD: Final = "-80"
# A visitor who presses reload.
RELOAD_S: Final = 0.01
# Beyond the moment when the replica has the change, so that its last old answer is seen.
WATCH_S: Final = LAG_S + 1.5
# How far back the killed invalidator is started.
BACK_S: Final = 10
# What reads by age are allowed, in milliseconds: the replica has the second, and not the third.
AGES_MS_MAX: Final = (None, LAG_S * 1_000 + 3_000, LAG_S * 1_000 - 500)
READS: Final = 10
# How long each server is given to prove an age: a heartbeat period of a busy machine.
AGE_WAIT_S: Final = 0.3
# Seasonal products come and go, with their sales.
_ALL_SALES: Final = f"SELECT SUM(sales) FROM {DATABASE}.stock WHERE product_id <= {PRODUCTS}"  # noqa: S608 - ours


class SeenPage(NamedTuple):
    """One page view, and when it came after the commit."""

    after_ms: int
    view: PageView


@dataclass
class CachedShop:
    """What the steps act on. `caches`: shardstream's is the first; `problems`: what was wrong."""

    story: Story
    load: ShopLoad
    caches: Sequence[ShopCache]
    replicas: Replicas
    redis: "Redis"
    problems: list[str] = field(default_factory=list)

    @property
    def fresh(self) -> ShopCache:
        """Shardstream's cache."""
        return self.caches[0]

    @property
    def followed(self) -> list[ShopCache]:
        """The caches whose entries the change stream removes."""
        return [cache for cache in self.caches if cache.is_followed]

    @property
    def quiet_keys(self) -> list[str]:
        """The pages that only the steps change."""
        return sorted({key for product_id in QUIET for key in keys_of(product_id)})

    def quiet_products(self, shard: str) -> list[int]:
        """The products of a shard that only the steps change."""
        return [each for each in QUIET if self.story.directory.shard_of(each) == shard]

    def view(self, cache: ShopCache, key: str, cookie: str = "") -> PageView:
        """Look at a page."""
        return view(cache, key, self.story.directory, cookie)

    def sell(self, product_id: int) -> float:
        """Sell a piece of a product; return the moment after the commit."""
        with closing(ShopSession(self.story.directory, self.story.writers)) as session:
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

        self.story.wait(are_cached, f"{doing}, some pages are not cached", look_s=RELOAD_S)
        return loads

    def wait_removed(self, key: str) -> None:
        """Wait until the change stream has removed a page that nobody looks at."""
        for cache in self.followed:
            is_removed = partial(_lacks, cache, key)
            problem = f"{cache.name}: {key} is not removed"
            self.story.wait(is_removed, problem, look_s=RELOAD_S)

    def settle(self) -> None:
        """Wait until all changes are everywhere, then look at each page once more, twice at most.

        Halt if that takes too long.
        """
        self.replicas.wait_caught_up()
        # Each shard log is read in order: once its last change is applied, all are.
        marks = [self.quiet_products(shard)[-1] for shard in self.story.directory.serving]
        self.cache_all([product_key(each) for each in marks], "before the last changes")
        for product_id in marks:
            self.sell(product_id)
            self.wait_removed(product_key(product_id))
        self.replicas.wait_caught_up()
        self.cache_all(all_keys(), "at the end")


def price_changes(shop: CachedShop) -> None:
    """(a) and (c): somebody buys, and another visitor reloads the page all the time."""
    product_id = shop.quiet_products(SHARD)[0]
    key = product_key(product_id)
    shop.cache_all([key], "before the sale")
    old = {cache.name: price_on(shop.view(cache, key)) for cache in shop.caches}
    committed_s = shop.sell(product_id)
    new = str(shop.load.catalogue_of(product_id).price(product_id))
    seen: dict[str, list[SeenPage]] = {cache.name: [] for cache in shop.caches}
    fresh = seen[shop.fresh.name]

    def is_watched() -> bool:
        for cache in shop.caches:
            page = shop.view(cache, key)
            seen[cache.name].append(SeenPage(_ms_since(committed_s), page))
        has_replica = time.monotonic() - committed_s > WATCH_S
        last = fresh[-1].view
        return has_replica and last.origin == "cache" and price_on(last) == new

    problem = f"(a) {shop.fresh.name} does not come to cache the new price"
    shop.story.wait(is_watched, problem, look_s=RELOAD_S)
    report = shop.story.report
    report(f"(a) a sale changes the price of {key}; another visitor keeps reloading the page")
    for name, pages in seen.items():
        report(f"    {name}: {_summary(pages, old[name], new)}")
    shop.problems += old_prices_back(fresh, new)


def old_prices_back(seen: Sequence[SeenPage], new: str) -> list[str]:
    """Return what is wrong with the answers of shardstream's cache after a change of the price."""
    problems = []
    is_removed = False
    for _, page in seen:
        is_removed = is_removed or page.origin != "cache"
        if is_removed and page.origin == "cache" and price_on(page) != new:
            problems.append("(a) the cache answered with the old price after it was removed")
    last = seen[-1].view
    if last.origin != "cache" or price_on(last) != new:
        problems.append(f"(a) the last answer is {price_on(last)} ({last.origin}), not {new}")
    return problems


def price_on(page: PageView) -> str:
    """Return the price on a product's page."""
    return str(page.page["price"])


def _summary(seen: Sequence[SeenPage], old: str, new: str) -> str:
    """Return the answers as a visitor saw them, repeated ones together."""
    parts = []
    for (origin, price), group in groupby(
        seen, lambda each: (each.view.origin, price_on(each.view))
    ):
        pages = list(group)
        word = "new" if price == new else "old" if price == old else "another"
        times = f" x{len(pages)}" if len(pages) > 1 else ""
        parts.append(f"{word} {price} ({origin}){times} at {pages[0].after_ms} ms")
    return ", ".join(parts)


def buyer_returns(shop: CachedShop) -> None:
    """(b): the buyer's next page view, with the cookie of the write."""
    product_id = shop.quiet_products(SHARD)[1]
    key = product_key(product_id)
    shop.cache_all([key], "before the sale")
    catalogue = shop.load.catalogue_of(product_id)
    change = catalogue.sale(product_id)
    with closing(shop.story.writers[SHARD]()) as connection:
        with connection.cursor() as cursor:
            for statement, rows in change.statements:
                cursor.executemany(statement, rows)
        connection.commit()
        cookies = {c.name: c.cookie_after(SHARD, connection) for c in shop.caches}
    committed_s = time.monotonic()
    shop.load.wrote(product_id)
    new = str(catalogue.price(product_id))
    shop.story.report(f"(b) the buyer's own next view of {key}")
    for cache in shop.caches:
        cookie = cookies[cache.name]
        page = shop.view(cache, key, cookie)
        word = "new" if price_on(page) == new else "OLD"
        held = f", with a cookie of {len(cookie)} characters" if cookie else ""
        after = f"{word} price ({page.origin}) after {_ms_since(committed_s)} ms{held}"
        shop.story.report(f"    {cache.name}: {after}")
        if cache is shop.fresh and word != "new":
            shop.problems.append("(b) the buyer did not see their own write")


def reads_by_age(shop: CachedShop) -> None:
    """(g): reads without a cache, of an age at most: which server answers, and what it lacks."""
    story = shop.story
    story.report(
        f"(g) the sales of {SHARD} are read past the caches, {READS} times for each age allowed"
    )
    clock = story.settings.clock_uncertainty()
    servers, flavor = shop.replicas.readers[SHARD], story.stack.shape.flavor
    proven = 0
    with (
        FreshReader(story.keyspace, SHARD, servers, flavor=flavor, clock=clock) as reader,
        closing(story.roots[SHARD]()) as primary,
    ):
        for max_age_ms in AGES_MS_MAX:
            answers = [_read_of_age(reader, primary, max_age_ms) for _ in range(READS)]
            given = [each for each in answers if isinstance(each, AgedRead)]
            name = "any age" if max_age_ms is None else f"at most {max_age_ms:,} ms"
            story.report(f"    {name}: {_aged_summary(given, READS - len(given))}")
            shop.problems += wrong_ages(given, max_age_ms)
            proven += sum(math.isfinite(each.age_ms) for each in given)
    if not proven:
        shop.problems.append(f"(g) no read has an age: {answers[-1]}")


class AgedRead(NamedTuple):
    """An answer: sales that it lacks of those before it was asked for, and its proven age."""

    lacks: int
    age_ms: float
    is_primary: bool


def wrong_ages(answers: Sequence[AgedRead], max_age_ms: int | None) -> list[str]:
    """Return what is wrong with the answers to reads of an age at most."""
    problems = []
    if max_age_ms is not None and any(each.age_ms > max_age_ms for each in answers):
        problems.append(f"(g) an answer is older than {max_age_ms:,} ms")
    if any(each.lacks for each in answers if each.is_primary):
        problems.append("(g) an answer of the primary lacks sales")
    return problems


def _read_of_age(reader: FreshReader, primary: Any, max_age_ms: int | None) -> AgedRead | TooOld:
    """Read; return the refusal if no server proves the age."""
    with primary.cursor() as cursor:
        cursor.execute(_ALL_SALES)
        [before] = cursor.fetchone()
    try:
        found = reader.execute(_ALL_SALES, max_age_ms=max_age_ms, wait_s=AGE_WAIT_S)
    except TooOld as refusal:
        return refusal
    [(sales,)] = found.rows
    age_ms = math.inf if found.age_ms is None else found.age_ms
    return AgedRead(max(0, int(before) - int(sales)), age_ms, found.is_primary)


def _aged_summary(answers: Sequence[AgedRead], refused: int) -> str:
    """Return who answered, and what the answers lacked, as text."""
    replicas = sum(not each.is_primary for each in answers)
    text = f"{replicas} by a replica, {len(answers) - replicas} by the primary, {refused} refused"
    if not answers:
        return text
    lacks, ages_ms = [each.lacks for each in answers], [each.age_ms for each in answers]
    return (
        f"{text}; {median(lacks):.0f} sales missing ({max(lacks)} at most); "
        f"proven age {median(ages_ms):,.0f} ms ({max(ages_ms):,.0f} ms at most)"
    )


def invalidator_is_killed(shop: CachedShop) -> None:
    """(d): the invalidator is killed, and later starts ten seconds back."""
    product_id = shop.quiet_products(SHARD)[2]
    key = product_key(product_id)
    shop.cache_all(shop.quiet_keys, "before the kill")
    watched = [each for each in shop.quiet_keys if each not in keys_of(product_id)]
    before = shop.fresh.stored(watched)
    for cache in shop.followed:
        cache.kill()
    shop.sell(product_id)
    for cache in shop.followed:
        cache.follow(BACK_S)
    shop.wait_removed(key)
    after = shop.fresh.stored(watched)
    kept = sum(after.get(name) == stored for name, stored in before.items())
    shop.story.report(
        f"(d) invalidator killed, and started {BACK_S} s back: {kept} of {len(watched)} entries of "
        "rows that did not change are still the same bytes"
    )
    if kept < len(watched):
        shop.problems.append(f"(d) {len(watched) - kept} entries have changed")


def everything_is_flushed(shop: CachedShop) -> None:
    """(e): FLUSHALL."""
    began_s = time.monotonic()
    shop.redis.flushall()
    loads = shop.cache_all(shop.quiet_keys, "after FLUSHALL")
    shop.story.report(
        f"(e) FLUSHALL: {len(shop.quiet_keys)} pages are cached again after "
        f"{time.monotonic() - began_s:.1f} s and {loads} reads of the database"
    )


def _lacks(cache: ShopCache, key: str) -> bool:
    return key not in cache.stored([key])


def _ms_since(then_s: float) -> int:
    return round((time.monotonic() - then_s) * 1000)
