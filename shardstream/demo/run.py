"""`shardstream demo` from beginning to end."""

import os
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from event_token import Flavor
from event_token.errors import Halt
from shardstream.demo.consumers import Consumers, database_url, start_second_database
from shardstream.demo.proof import (
    ReadTable,
    count_rows,
    database_reader,
    prove,
    read_sources,
    state_reader,
)
from shardstream.demo.shop import DATABASE, SHARDING_COLUMNS, SOURCE, TARGETS, shop_tables
from shardstream.demo.spark_job import CHANGE_LOG, CURRENT_STATE, SECOND_DATABASE
from shardstream.demo.story import Story, are_complete, fresh_folder, timed_report
from shardstream.demo.workload import ShopWorkload
from shardstream.status.keyspace_report import keyspace_text
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyAction, CopyFeed, CopyRequest, ask_and_wait

# The split begins after this part of the workload's time, and needs about another.
SPLIT_PART: Final = 1 / 3
# Traffic on the new shards before the workload ends.
AFTER_SPLIT_S: Final = 5.0
# Spark starts in 10 s alone, and in a minute or so where two cores do everything at once.
CATCH_UP_S_MAX: Final = 300.0
# Everything is on one machine, which is busy: readers that wait for a moment are no news.
MAX_BEHIND_S: Final = 10.0
# A JVM of two minutes does not earn back what its second compiler takes.
_SMALL_JVMS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Producers answer once they stream.
COPY_S_MAX: Final = 120.0
# Commit times of MariaDB are whole seconds: an order across shards needs a second in between.
TRAVEL_S: Final = {Flavor.MYSQL: 0.0, Flavor.MARIADB: 1.0}


def run_demo(seconds: int, folder: Path, flavor: Flavor | None = None) -> bool:
    """Run everything for `seconds` of workload, then prove the result; True when it holds.

    `flavor`: the database family; None takes MySQL where it is available, else MariaDB.
    """
    console = Console(highlight=False)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _SMALL_JVMS)
    with ExitStack() as cleanup:
        story = Story(fresh_folder(folder), timed_report(console), cleanup, flavor=flavor)
        story.stack.start()
        demo = _Demo(story)
        demo.begin()
        with Live(console=console, get_renderable=demo.render):
            demo.write(seconds)
            demo.catch_up()
        console.print()
        return demo.prove(console)


class _Demo:
    """The shop's orders, and all that follows their changes."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._copies: list[CopyFeed] = []
        self._second = start_second_database(story.folder / "postgres", story.report)
        if self._second is not None:
            story.cleanup.callback(self._second.kill)
        self._consumers = Consumers(story, self._second)
        story.open_shop(SHARDING_COLUMNS, shop_tables())
        travel_s = TRAVEL_S[story.stack.shape.flavor]
        self._workload = ShopWorkload(story.directory, story.writers, travel_s)
        story.look_after(self._workload)

    def begin(self) -> None:
        """Fill the tables; start producers, consumers, copies and the workload."""
        story = self._story
        for _ in self._workload.write_first():
            pass
        self._held = sum(count_rows(story.roots[shard]) for shard in story.sources)
        story.report(f"the shop's tables hold {self._held:,} rows; producers start behind them")
        story.start_producers()
        self._consumers.start()
        names = ", ".join(self._consumers.names)
        story.report(f"Spark starts: {names}; the producers are asked for a copy")
        for shard in story.sources:
            topics = ShardTopics(story.keyspace, shard)
            answer = ask_and_wait(story.client, topics, CopyRequest(CopyAction.START), COPY_S_MAX)
            if answer.problems:
                raise Halt("\n".join(answer.problems))
            feed = CopyFeed(story.client, topics)
            story.cleanup.callback(feed.close)
            feed.read_to_end()
            self._copies.append(feed)
        story.report("the tables are being copied; the workload begins")

    def write(self, seconds: int) -> None:
        story = self._story
        began_s = time.monotonic()
        self._workload.start()
        story.phase = "orders are coming in"
        story.let_run(began_s + seconds * SPLIT_PART)
        story.wait(self._are_copied, "the tables are not copied", s_max=CATCH_UP_S_MAX)
        story.phase = "orders are coming in, and a shard is split"
        story.split()
        story.phase = "orders are coming in"
        story.let_run(max(began_s + seconds, time.monotonic() + AFTER_SPLIT_S))
        self._workload.stop()

    def _are_copied(self) -> bool:
        for feed in self._copies:
            feed.poll(0)
        return all(are_complete(feed) for feed in self._copies)

    def catch_up(self) -> None:
        """Wait until everything written is in the change log, the tables and the database."""
        story, consumers = self._story, self._consumers
        story.phase = "the workload has ended; the consumers catch up"
        # Everything is on one machine, so no record is newer by the databases' clocks.
        ended_us = time.time_ns() // 1_000
        try:
            story.wait(
                lambda: consumers.frontier_us > ended_us,
                "the consumers do not catch up",
                s_max=CATCH_UP_S_MAX,
            )
        except Halt as halt:
            raise Halt(
                f"{halt}: the change log holds {consumers.rows[CHANGE_LOG]} records, and all "
                f"consumers are complete up to {clock(consumers.frontier_us)}; logs are in "
                f"{story.folder}"
            ) from halt
        story.workers.stop()

    def render(self) -> RenderableType:
        """Return what the screen shows now: shards, what the consumers hold, split."""
        view = self._story.view
        summary = Text.assemble(
            ("written to the databases ", "dim"),
            f"{self._workload.ledger.changes:,}",
        )
        consumers = Text("   ").join(
            Text.assemble((f"{name} ", "dim"), (f"{rows:,}", "bold green"))
            for name, rows in self._consumers.rows.items()
        )
        parts: list[RenderableType] = [summary, consumers]
        if view is not None:
            parts = [keyspace_text(view, MAX_BEHIND_S), Text(), *parts]
        return self._story.panel("shardstream demo", parts)

    def prove(self, console: Console) -> bool:
        story, ledger = self._story, self._workload.ledger
        story.directory.look_again()
        serving = story.directory.serving
        sources = read_sources({shard: story.roots[shard] for shard in serving})
        tables: dict[str, ReadTable] = {CURRENT_STATE: state_reader(self._consumers.state)}
        if self._second is not None:
            tables[SECOND_DATABASE] = database_reader(database_url(self._second))
        verdict = prove(str(self._consumers.changelog), tables, sources, ledger)
        console.print(
            f"copied: {verdict.copied:,} rows, beside the changes: the {self._held:,} that the "
            f"tables held before the producers started, and those of {SOURCE} for the split"
        )
        console.print(
            f"split: {ledger.refused} transactions were refused and done again on "
            f"{' and '.join(TARGETS)}; the log goes on there at {clock(verdict.hop_time_us)}"
        )
        different = ", ".join(
            f"{count} different in the {name}" for name, count in verdict.different.items()
        )
        console.print(
            f"proof: {verdict.rows_compared:,} rows of {len(serving)} databases "
            f"({', '.join(serving)}) compared with the change log replayed, and with the rows of "
            f"{' and '.join(tables)}: {different}; {ledger.moves} moves across shards "
            "seen in order"
        )
        self._print_queries(console)
        console.print(verdict.last_line())
        return verdict.holds

    def _print_queries(self, console: Console) -> None:
        console.print("change log and current state are Delta tables; try:")
        counts = 'SELECT shard, "table", op, count(*) FROM log GROUP BY 1, 2, 3 ORDER BY 1, 2, 3'
        orders = "SELECT status, count(*), sum(total) FROM log GROUP BY 1 ORDER BY 1"
        here = Path.cwd()
        for path, sql in (
            (self._consumers.changelog, counts),
            (self._consumers.state / DATABASE / "orders", orders),
        ):
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            command = f"  shardstream query {shown} '{sql}'"
            console.print(command, markup=False, soft_wrap=True)


def clock(timestamp_us: int | None) -> str:
    """Return the time of day with milliseconds, UTC."""
    if not timestamp_us:
        return "-"
    return datetime.fromtimestamp(timestamp_us / 1e6, tz=UTC).strftime("%H:%M:%S.%f")[:-3]
