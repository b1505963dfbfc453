"""`shardstream demo --cache` from beginning to end."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pymysql
from redis import Redis
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from event_token import Flavor
from event_token.errors import Halt
from shardstream.demo.cached import steps
from shardstream.demo.cached.caches import CACHE, KEY_MAP, ShopCache, shop_caches
from shardstream.demo.cached.catalogue import SHARDING_COLUMNS, TABLES
from shardstream.demo.cached.load import ShopLoad
from shardstream.demo.cached.proof import (
    CacheComparison,
    CachedVerdict,
    compare_with_primaries,
)
from shardstream.demo.cached.replicas import LAG_S, Replicas
from shardstream.demo.shop import SOURCE, TARGETS, BackgroundWork
from shardstream.demo.story import Story, fresh_folder, timed_report
from shardstream.local.fetching import Report

# The load before the steps begin, and after the split, of the whole.
FIRST_PART: Final = 1 / 3
SAMPLE_INTERVAL_S: Final = 1.0


def run_cached_demo(
    seconds: int, folder: Path, flavor: Flavor | None = None, *, plain: bool, split: bool = True
) -> bool:
    """Run the shop with `seconds` of load around the steps; True if no entry is wrong at the end.

    `plain`: with ordinary caches beside shardstream's, under the same load. `flavor`: the database
    family; None takes MySQL where it is available. `split`: whether a shard is split, too.
    """
    console = Console(highlight=False)
    folder, targets = fresh_folder(folder), TARGETS if split else ()
    with ExitStack() as cleanup:
        report = timed_report(console)
        story = Story(folder, report, cleanup, flavor=flavor, targets=targets, redis=True)
        demo = _Demo(story, plain=plain)
        demo.begin()
        with Live(console=console, get_renderable=demo.render, transient=True):
            demo.play(seconds)
        return demo.prove(console)


def compare_caches(
    seconds: int, folder: Path, report: Report, *, split: bool = True
) -> Mapping[str, CacheComparison]:
    """Run the shop with ordinary caches beside shardstream's; return what each holds at the end.

    By the caches' names; for the other arguments see `run_cached_demo`. Halt if a step of the
    story did not go as it should.
    """
    with ExitStack() as cleanup:
        story = Story(folder, report, cleanup, targets=TARGETS if split else (), redis=True)
        demo = _Demo(story, plain=True)
        demo.begin()
        demo.play(seconds)
        verdict = demo.verdict()
    if verdict.problems:
        raise Halt("; ".join(verdict.problems))
    return verdict.found


class _Sampler(BackgroundWork):
    """Compares the caches with the primaries all the time, for the screen alone."""

    def __init__(self, story: Story, caches: Sequence[ShopCache]) -> None:
        super().__init__()
        self._story = story
        self._caches = caches
        self.found: Mapping[str, CacheComparison] = {}
        self._prepare([self._sample])

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            # A server that is being stopped is read again from its successors.
            with suppress(pymysql.err.MySQLError):
                self.found = compare_with_primaries(self._story, self._caches)


class _Demo:
    """The shop behind caches: shards and their lagging replicas, Kafka, and Redis."""

    def __init__(self, story: Story, *, plain: bool) -> None:
        story.phase = "starting"
        replicas = Replicas(story)
        replicas.launch()
        story.stack.start()
        redis_server = story.stack.caches["redis"]
        redis = Redis(port=redis_server.port)
        story.cleanup.callback(redis.close)
        caches_section = (
            f"\n[caches.{CACHE}]\n"
            f'keyspace = "{story.keyspace}"\n'
            f'store = "redis://{redis_server.address}"\n'
            f'keys = "{KEY_MAP}"\n'
        )
        # Reads have an age by them.
        story.open_shop(SHARDING_COLUMNS, TABLES, caches_section, heartbeat_rows="always")
        replicas.follow()
        caches = shop_caches(story, replicas.readers, redis_server.port, plain=plain)
        self._story = story
        self._load = ShopLoad(story.directory, story.writers, caches)
        self._sampler = _Sampler(story, caches)
        self._shop = steps.CachedShop(story, self._load, caches, replicas, redis)
        story.look_after(self._load)
        story.look_after(self._sampler)

    def begin(self) -> None:
        """Fill the tables, start the producers and what invalidates, and cache the first pages."""
        story, shop = self._story, self._shop
        self._load.fill()
        story.start_producers()
        story.wait(
            lambda: story.view is not None and story.view.frontier_us is not None,
            "the producers do not stream",
        )
        for cache in shop.followed:
            cache.follow()
        shop.replicas.wait_caught_up()
        shop.cache_all(shop.quiet_keys, "at the beginning")
        names = ", ".join(cache.name for cache in shop.caches)
        story.report(f"the shop is open, its pages are cached by: {names}; the load begins")

    def play(self, seconds: int) -> None:
        story, shop = self._story, self._shop
        self._load.start()
        self._sampler.start()
        story.phase = "buyers buy, visitors look at pages"
        story.let_run(time.monotonic() + seconds * FIRST_PART)
        for phase, step in (
            ("a price changes", steps.price_changes),
            ("the buyer returns", steps.buyer_returns),
            ("rows are read by age", steps.reads_by_age),
            ("the invalidator is killed", steps.invalidator_is_killed),
            ("Redis is flushed", steps.everything_is_flushed),
        ):
            story.phase = phase
            step(shop)
        if story.stack.shape.targets:
            story.phase = f"shard {SOURCE} is split"
            story.split("(f) ")
            story.doing = ""
        story.phase = "buyers buy, visitors look at pages"
        story.let_run(time.monotonic() + seconds * (1 - FIRST_PART))
        story.phase = "the load has ended; the last changes arrive"
        self._load.stop()
        shop.settle()
        self._sampler.stop()

    def render(self) -> RenderableType:
        table = Table(expand=True, pad_edge=False, box=None)
        table.add_column("cache", style="bold blue")
        for heading in ("hits", "from databases", "not cached", "entries", "differ from primaries"):
            table.add_column(heading, justify="right")
        for cache in self._shop.caches:
            counts, found = cache.counts(), self._sampler.found.get(cache.name)
            table.add_row(
                cache.name,
                f"{counts.hits:,}",
                f"{counts.loads:,}",
                f"{counts.refused:,}",
                f"{found.entries:,}" if found else "-",
                f"{len(found.differences):,}" if found else "-",
            )
        summary = Text.assemble(
            ("page views ", "dim"),
            f"{self._load.views:,}",
            ("   sales ", "dim"),
            f"{self._load.sales:,}",
            ("   replicas behind by ", "dim"),
            f"{LAG_S} s",
        )
        return self._story.panel("shardstream demo --cache", [table, Text(), summary])

    def verdict(self) -> CachedVerdict:
        found = compare_with_primaries(self._story, self._shop.caches)
        return CachedVerdict(found, self._shop.problems)

    def prove(self, console: Console) -> bool:
        verdict = self.verdict()
        shards = ", ".join(self._story.directory.serving)
        console.print(
            f"\n{self._load.sales:,} sales, {self._load.views:,} page views; all entries in Redis, "
            f"compared with the rows of the primaries of {shards}:\n",
            soft_wrap=True,
        )
        console.print(verdict.table(self._shop.caches))
        for line in verdict.examples():
            console.print(line, markup=False, soft_wrap=True)
        for problem in verdict.problems:
            console.print(f"[bold red]wrong:[/] {problem}", soft_wrap=True)
        console.print(verdict.last_line(), soft_wrap=True)
        return verdict.holds
