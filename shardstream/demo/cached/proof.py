"""The proof of the cached shop: each cache's entries are compared with the primaries' rows."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

from rich.table import Table

from shardstream.demo.cached.caches import FRESH, ShopCache
from shardstream.demo.cached.catalogue import ALL, all_keys, all_pages
from shardstream.demo.shop import DATABASE
from shardstream.demo.story import Story

# Wrong entries that are printed per cache.
SHOWN_MAX: Final = 2


class PageDifference(NamedTuple):
    """A page as a cache has it, and as the primary's rows have it."""

    key: str
    cached: Any
    true: Any


class CacheComparison(NamedTuple):
    """Entries of a cache that were compared with the primaries, and those that differ."""

    entries: int
    differences: list[PageDifference]


@dataclass(frozen=True, slots=True)
class CachedVerdict:
    """What each cache holds at the end, by its name, and what the steps found wrong."""

    found: Mapping[str, CacheComparison]
    problems: Sequence[str]

    @property
    def holds(self) -> bool:
        """Whether shardstream's cache has an entry for each page, and no wrong one."""
        fresh = self.found[FRESH]
        # A proof over nothing proves nothing.
        is_whole = fresh.entries == len(all_keys())
        return is_whole and not fresh.differences and not self.problems

    def last_line(self) -> str:
        """The line that the demo ends with."""
        fresh = self.found[FRESH]
        others = "".join(
            f"; {name}: {len(each.differences)} wrong"
            for name, each in self.found.items()
            if name != FRESH
        )
        return f"demo: {fresh.entries} entries, {len(fresh.differences)} wrong{others}"

    def table(self, caches: Sequence[ShopCache]) -> Table:
        """Return the table of all caches."""
        table = Table(pad_edge=False, box=None)
        table.add_column("cache")
        for heading in ("entries", "wrong", "hits", "loads", "not cached"):
            table.add_column(heading, justify="right")
        table.add_column("wrong how long", no_wrap=True)
        for cache in caches:
            found, counts = self.found[cache.name], cache.counts()
            table.add_row(
                cache.name,
                f"{found.entries:,}",
                f"[bold]{len(found.differences):,}[/]",
                f"{counts.hits:,}",
                f"{counts.loads:,}",
                f"{counts.refused:,}",
                cache.stays if found.differences else "",
            )
        return table

    def examples(self) -> list[str]:
        """Return a few wrong entries as text."""
        lines = []
        for name, found in self.found.items():
            products = [each for each in found.differences if each.key.startswith("product:")]
            lines += [
                f"{name} has {each.key} at {_short(each.cached)}; "
                f"the primary, at {_short(each.true)}"
                for each in products[:SHOWN_MAX]
            ]
        return lines


def compare_with_primaries(story: Story, caches: Sequence[ShopCache]) -> dict[str, CacheComparison]:
    """Compare everything that the caches hold with the primaries that serve now, by cache."""
    found = {}
    for cache in caches:
        entries = cache.entries(all_keys())
        rows: list[tuple[int, str, Decimal, int]] = []
        for shard in story.directory.serving:
            with closing(story.roots[shard]()) as connection, connection.cursor() as cursor:
                cursor.execute(f"USE {DATABASE}")
                cursor.execute(ALL)
                rows += cursor.fetchall()
        found[cache.name] = compare(entries, all_pages(rows))
    return found


def compare(entries: Mapping[str, Any], pages: Mapping[str, Any]) -> CacheComparison:
    """Compare entries with the pages that they should be."""
    differences = [
        PageDifference(key, cached, pages[key])
        for key, cached in entries.items()
        if cached != pages[key]
    ]
    return CacheComparison(len(entries), differences)


def _short(page: object) -> str:
    if isinstance(page, dict):
        return f"{page['price']} with {page['pieces']} left"
    return "nothing (no such product)"
