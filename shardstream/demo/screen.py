"""The demo's live screen."""

from collections.abc import Mapping
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from shardstream.demo.watch import ProgressWatch, ShardView
from shardstream.demo.workload import Ledger

# A GTID set of one server is 36 characters and a range; the end of it shows the progress.
POSITION_WIDTH = 24


def clock(timestamp_us: int | None) -> str:
    """Return the time of day with milliseconds, UTC."""
    if not timestamp_us:
        return "-"
    return datetime.fromtimestamp(timestamp_us / 1e6, tz=UTC).strftime("%H:%M:%S.%f")[:-3]


def render(
    watch: ProgressWatch, ledger: Ledger, held: Mapping[str, int], phase: str, split: str
) -> RenderableType:
    """Render shards, frontier, what the consumers hold, and split."""
    table = Table(expand=True, pad_edge=False, box=None)
    table.add_column("shard", style="bold blue")
    table.add_column("position")
    table.add_column("head")
    for heading in ("lag", "rows", "rows/s"):
        table.add_column(heading, justify="right")
    for view in watch.views.values():
        table.add_row(*_cells(view))
    summary = Text.assemble(
        ("frontier ", "dim"),
        clock(watch.frontier_us),
        ("   written to the databases ", "dim"),
        f"{ledger.changes:,}",
        ("   in the shard logs ", "dim"),
        f"{watch.rows:,}",
    )
    consumers = Text("   ").join(
        Text.assemble((f"{name} ", "dim"), (f"{rows:,}", "bold green"))
        for name, rows in held.items()
    )
    parts: list[RenderableType] = [table, Text(), summary, consumers]
    if split:
        parts.append(Text.assemble(("split of 80-: ", "dim"), split))
    return Panel(Group(*parts), title=f"shardstream demo: {phase}", padding=(1, 2))


def _cells(view: ShardView) -> tuple[str, ...]:
    progress = view.progress
    if progress is None:
        return (view.shard, "-", "-", "-", "0", "0")
    position = progress.position
    shown = position if len(position) <= POSITION_WIDTH else "…" + position[1 - POSITION_WIDTH :]
    return (
        view.shard,
        shown,
        clock(progress.head_us),
        f"{progress.lag_ms} ms" if view.state == "serving" else view.state,
        f"{view.rows:,}",
        f"{view.rows_per_s:,.0f}",
    )
