"""The live screen of the cached shop, and the samples that it shows."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pymysql
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shardstream.demo.cached.load import Load
from shardstream.demo.cached.replicas import LAG_S
from shardstream.demo.cached.shop_cache import ShopCache
from shardstream.demo.cached.truth import Comparison, Truth

SAMPLE_INTERVAL_S = 1.0


class Sampler:
    """Compares the caches with the primaries all the time, in a thread, for the screen alone."""

    def __init__(self, truth: Truth, caches: Sequence[ShopCache]) -> None:
        """Start nothing yet."""
        self._truth = truth
        self._caches = caches
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.found: Mapping[str, Comparison] = {}

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop and wait."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_INTERVAL_S):
            # A server that is being stopped is read again from its successors.
            with suppress(pymysql.err.MySQLError):
                self.found = {each.name: self._truth.compare(each) for each in self._caches}


def render(
    phase: str, load: Load, caches: Sequence[ShopCache], sampler: Sampler, split: str
) -> RenderableType:
    """Render the load and the caches."""
    table = Table(expand=True, pad_edge=False, box=None)
    table.add_column("cache", style="bold blue")
    for heading in ("hits", "from databases", "not cached", "entries", "differ from primaries"):
        table.add_column(heading, justify="right")
    for cache in caches:
        counts, found = cache.counts(), sampler.found.get(cache.name)
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
        f"{load.views:,}",
        ("   sales ", "dim"),
        f"{load.sales:,}",
        ("   replicas behind by ", "dim"),
        f"{LAG_S} s",
    )
    parts: list[RenderableType] = [table, Text(), summary]
    if split:
        parts.append(Text.assemble(("split of 80-: ", "dim"), split))
    return Panel(Group(*parts), title=f"shardstream demo --cache: {phase}", padding=(1, 2))
