"""What the primaries' rows say, and which entries of a cache say something else."""

from collections.abc import Mapping
from contextlib import closing
from decimal import Decimal
from typing import Any, NamedTuple

from shardstream.demo.cached.catalogue import ALL, all_keys, all_pages
from shardstream.demo.cached.shop_cache import ShopCache
from shardstream.demo.sharded_writes import ShardDirectory
from shardstream.demo.shop import DATABASE, Connect


class Difference(NamedTuple):
    """A page as a cache has it, and as the primary's rows have it."""

    key: str
    cached: Any
    true: Any


class Comparison(NamedTuple):
    """Entries of a cache that were compared with the primaries, and those that differ."""

    entries: int
    differences: list[Difference]


class Truth:
    """Reads all rows from the primaries that serve now. For one thread."""

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        """`connects`: by shard, to the primary."""
        self._directory = directory
        self._connects = connects

    def pages(self) -> dict[str, Any]:
        """Return all pages as the primaries' rows make them."""
        rows: list[tuple[int, str, Decimal, int]] = []
        for shard in self._directory.serving:
            with closing(self._connects[shard]()) as connection, connection.cursor() as cursor:
                cursor.execute(f"USE {DATABASE}")
                cursor.execute(ALL)
                rows += cursor.fetchall()
        return all_pages(rows)

    def compare(self, cache: ShopCache) -> Comparison:
        """Compare everything that a cache holds with the primaries."""
        entries = cache.entries(all_keys())
        return compare(entries, self.pages())


def compare(entries: Mapping[str, Any], pages: Mapping[str, Any]) -> Comparison:
    """Compare entries with the pages that they should be."""
    differences = [
        Difference(key, cached, pages[key])
        for key, cached in entries.items()
        if cached != pages[key]
    ]
    return Comparison(len(entries), differences)
