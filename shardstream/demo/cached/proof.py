"""The end of the demo: all has come to rest, and each cache is compared with the primaries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table

from shardstream.demo.cached.catalogue import all_keys, product_key
from shardstream.demo.cached.fresh import FreshCache
from shardstream.demo.cached.plain import ASIDE, EXPIRING, ON_CDC
from shardstream.demo.cached.replicas import Replicas
from shardstream.demo.cached.shop_cache import ShopCache
from shardstream.demo.cached.story import World
from shardstream.demo.cached.truth import Comparison

# Wrong entries that are printed per cache.
SHOWN_MAX: Final = 2
# How long wrong entries stay. For good: nothing removes them unless the row changes again.
STAY: Final = {
    ASIDE.name: "for good",
    ON_CDC.name: "for good",
    EXPIRING.name: "until they expire",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What each cache holds at the end, by its name, and what the steps found wrong."""

    found: Mapping[str, Comparison]
    problems: Sequence[str]

    @property
    def holds(self) -> bool:
        """Whether shardstream's cache has an entry for each page, and no wrong one."""
        fresh = self.found[FreshCache.name]
        # A proof over nothing proves nothing.
        is_whole = fresh.entries == len(all_keys())
        return is_whole and not fresh.differences and not self.problems

    def last_line(self) -> str:
        """The line that the demo ends with."""
        fresh = self.found[FreshCache.name]
        others = "".join(
            f"; {name}: {len(each.differences)} wrong"
            for name, each in self.found.items()
            if name != FreshCache.name
        )
        return f"demo: {fresh.entries} entries, {len(fresh.differences)} wrong{others}"


def settle(world: World, replicas: Replicas) -> None:
    """Wait until all changes are everywhere, then look at each page once more, twice at most.

    Halt if that takes too long.
    """
    replicas.wait_caught_up()
    # Each shard log is read in order: once its last change is applied, all are.
    marks = [world.quiet_products(shard)[-1] for shard in world.directory.serving]
    world.cache_all([product_key(each) for each in marks], "before the last changes")
    for product_id in marks:
        world.sell(product_id)
        world.wait_removed(product_key(product_id))
    replicas.wait_caught_up()
    world.cache_all(all_keys(), "at the end")


def outcome(verdict: Verdict, caches: Sequence[ShopCache]) -> Table:
    """Return the table of all caches."""
    table = Table(pad_edge=False, box=None)
    table.add_column("cache")
    for heading in ("entries", "wrong", "hits", "loads", "not cached"):
        table.add_column(heading, justify="right")
    table.add_column("wrong how long", no_wrap=True)
    for cache in caches:
        found, counts = verdict.found[cache.name], cache.counts()
        wrong = len(found.differences)
        table.add_row(
            cache.name,
            f"{found.entries:,}",
            f"[bold]{wrong:,}[/]",
            f"{counts.hits:,}",
            f"{counts.loads:,}",
            f"{counts.refused:,}",
            STAY.get(cache.name, "") if wrong else "",
        )
    return table


def examples(verdict: Verdict) -> list[str]:
    """Return a few wrong entries as text."""
    lines = []
    for name, found in verdict.found.items():
        products = [each for each in found.differences if each.key.startswith("product:")]
        lines += [
            f"{name} has {each.key} at {_short(each.cached)}; the primary, at {_short(each.true)}"
            for each in products[:SHOWN_MAX]
        ]
    return lines


def _short(page: object) -> str:
    if isinstance(page, dict):
        return f"{page['price']} with {page['pieces']} left"
    return "nothing (no such product)"
