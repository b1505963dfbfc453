"""The demo from beginning to end."""

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.live import Live

from event_token import Flavor
from event_token.errors import Halt
from shardstream.commands.declared_topology import ensure_topology
from shardstream.demo.consumers import (
    CHANGE_LOG,
    CURRENT_STATE,
    SECOND_DATABASE,
    Consumers,
    SecondDatabase,
    start_second_database,
)
from shardstream.demo.folder import fresh_folder
from shardstream.demo.proof import prove
from shardstream.demo.screen import clock, render
from shardstream.demo.sharded_writes import ShardDirectory
from shardstream.demo.shop import (
    DATABASE,
    connect_as_application,
    connect_as_root,
    create_tables,
    make_accounts,
    settings_of_the_shop,
)
from shardstream.demo.split import SOURCE, TARGETS, Split, are_complete
from shardstream.demo.tables_proof import ReadTable, database_reader, state_reader
from shardstream.demo.watch import ProgressWatch
from shardstream.demo.workers import Workers
from shardstream.demo.workload import Ledger, ShopWorkload
from shardstream.local.database_server import NOT_DURABLE
from shardstream.local.shape import StackShape
from shardstream.local.stack import Stack, flavor_at_hand
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import topic_settings
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyAction, CopyFeed, CopyRequest, ask_and_wait
from topics.schemas.registry import open_schema_ids

SHARDS = 2
SCREEN_INTERVAL_S = 0.25
# The split begins after this part of the workload's time, and needs about another.
SPLIT_PART = 1 / 3
# Traffic on the new shards before the workload ends.
AFTER_SPLIT_S = 5.0
# Spark starts in 10 s alone, and in a minute or so where two cores do everything at once.
CATCH_UP_S_MAX = 300.0
# Producers answer once they stream.
COPY_S_MAX = 120.0
# Commit times of MariaDB are whole seconds: an order across shards needs a second in between.
TRAVEL_S = {Flavor.MYSQL: 0.0, Flavor.MARIADB: 1.0}


def run_demo(seconds: int, folder: Path, flavor: Flavor | None = None) -> bool:
    """Run everything for `seconds` of workload, then prove the result; True when it holds.

    `flavor`: the database family; None takes MySQL where it is available, else MariaDB.
    """
    console = Console(highlight=False)
    folder = fresh_folder(folder)
    began_s = time.monotonic()

    def report(message: str) -> None:
        console.print(f"[dim]{time.monotonic() - began_s:5.1f} s[/]  {message}")

    with ExitStack() as cleanup:
        flavor = flavor or flavor_at_hand(report)
        report(f"database: {'MySQL' if flavor == 'mysql' else 'MariaDB'}")
        shape = StackShape(flavor=flavor, shards=SHARDS, brokers=1, targets=TARGETS)
        stack = Stack(
            folder / "stack", shape, die_with_parent=True, extra_args=NOT_DURABLE, report=report
        )
        cleanup.callback(stack.kill)
        stack.start()
        demo = _Demo(console, folder, stack, cleanup, report)
        demo.begin()
        report("the tables are being copied; the workload begins")
        with Live(console=console, auto_refresh=False) as live:
            demo.write(seconds, live)
            demo.catch_up(live)
        console.print()
        return demo.prove()


class _Demo:
    """The parts of a running demo."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        stack: Stack,
        cleanup: ExitStack,
        report: Callable[[str], None],
    ) -> None:
        self._console = console
        self._folder = folder
        self._stack = stack
        self._cleanup = cleanup
        self._report = report
        self._keyspace = stack.shape.keyspace
        self._ledger = Ledger()
        self._workers = Workers(folder, stack.settings_path)
        cleanup.callback(self._workers.kill)
        self._held = 0
        self._copies: dict[str, CopyFeed] = {}
        self._directory: ShardDirectory
        self._workload: ShopWorkload
        self._watch: ProgressWatch
        self._split: Split
        self._consumers = Consumers(folder, self._keyspace, self._workers)
        self._second: SecondDatabase | None = None

    def begin(self) -> None:
        """Start the second database, fill the tables, start producers, consumers and copies."""
        self._second = start_second_database(
            self._folder / "postgres", secrets.token_hex(8), self._report
        )
        if self._second is not None:
            self._cleanup.callback(self._second.server.kill)
        client = self._fill_shop()
        self._start_producers(client)
        self._consumers.start(self._second)
        names = ", ".join(self._consumers.rows)
        self._report(f"Spark starts: {names}; the producers are asked for a copy")
        self._start_copies(client)

    @property
    def _sources(self) -> list[str]:
        return [shard for shard in self._stack.databases if shard not in TARGETS]

    def _fill_shop(self) -> ClientConfig:
        """Make accounts, tables, settings and rows."""
        servers = self._stack.databases
        for shard, server in servers.items():
            make_accounts(server, is_target=shard in TARGETS)
        for shard in self._sources:
            create_tables(servers[shard])
        with self._stack.settings_path.open("a") as file:
            file.write(settings_of_the_shop(self._keyspace))
        settings = load_settings(self._stack.settings_path)
        client = settings.kafka_client()
        ensure_topology(settings, self._keyspace)
        self._directory = ShardDirectory(self._keyspace, client)
        self._workload = ShopWorkload(
            self._directory,
            {shard: connect_as_application(server) for shard, server in servers.items()},
            self._ledger,
            TRAVEL_S[self._stack.shape.flavor],
        )
        self._cleanup.callback(self._workload.ask_to_stop)
        self._held = self._workload.fill({s: connect_as_root(servers[s]) for s in self._sources})
        self._report(f"the shop's tables hold {self._held:,} rows; producers start behind them")
        return client

    def _start_producers(self, client: ClientConfig) -> None:
        settings = load_settings(self._stack.settings_path)
        for shard in self._sources:
            topics = ShardTopics(self._keyspace, shard)
            provision_shard(client, topics, topic_settings(settings))
            self._workers.start(f"producer_{shard}", "produce", self._keyspace, shard)
        schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
        self._watch = ProgressWatch(client, self._keyspace, self._sources, schema_ids)
        self._cleanup.callback(self._watch.close)

    def _start_copies(self, client: ClientConfig) -> None:
        for shard in self._sources:
            topics = ShardTopics(self._keyspace, shard)
            answer = ask_and_wait(client, topics, CopyRequest(CopyAction.START), COPY_S_MAX)
            if answer.problems:
                raise Halt("\n".join(answer.problems))
            feed = self._copies[shard] = CopyFeed(client, topics)
            self._cleanup.callback(feed.close)
            feed.read_to_end()
        copies, server = self._copies[SOURCE], self._stack.databases[SOURCE]
        self._split = Split(
            self._keyspace,
            self._workers,
            self._watch,
            copies=copies,
            server=server,
            report=self._report,
        )

    def _are_copied(self) -> bool:
        for feed in self._copies.values():
            feed.poll(0)
        return are_complete(
            [copy for feed in self._copies.values() for copy in feed.tables.values()]
        )

    def write(self, seconds: int, live: Live) -> None:
        """Let the workload run, with the split in its middle, and show what happens."""
        self._workload.start()
        began_s = time.monotonic()
        split_s = began_s + seconds * SPLIT_PART
        self._show(
            live,
            "orders are coming in",
            lambda: time.monotonic() >= split_s and self._are_copied(),
        )
        self._show(live, "orders are coming in, and a shard is split", self._split.go_on)
        ends_s = max(began_s + seconds, time.monotonic() + AFTER_SPLIT_S)
        self._show(live, "orders are coming in", lambda: time.monotonic() >= ends_s)
        self._workload.stop()

    def catch_up(self, live: Live) -> None:
        """Wait until everything written is in the change log, the tables and the database."""
        ends_s = time.monotonic() + CATCH_UP_S_MAX
        last_us = 0

        def done() -> bool:
            nonlocal last_us
            held, in_logs = self._consumers.rows, self._watch.rows
            if time.monotonic() > ends_s:
                raise Halt(
                    f"after {CATCH_UP_S_MAX:.0f} s the change log holds {held[CHANGE_LOG]} of "
                    f"{in_logs} records, and all are complete up to "
                    f"{clock(self._consumers.frontier_us)}; logs are in {self._folder}"
                )
            # Copied rows count too, so the logs hold more than the workload's changes.
            if in_logs < self._ledger.changes or held[CHANGE_LOG] < in_logs:
                return False
            last_us = last_us or self._watch.newest_us
            return self._consumers.frontier_us > last_us

        self._show(live, "the workload has ended; the consumers catch up", done)
        self._workers.stop()

    def _show(self, live: Live, phase: str, done: Callable[[], bool]) -> None:
        while not done():
            self._workers.check_alive()
            self._workload.check()
            self._watch.look(SCREEN_INTERVAL_S)
            held = self._consumers.rows
            view = render(self._watch, self._ledger, held, phase, self._split.doing)
            live.update(view, refresh=True)

    def prove(self) -> bool:
        """Compare, and say what was found; the verdict is the last line."""
        self._directory.look_again()
        shards = {
            shard: connect_as_root(self._stack.databases[shard])
            for shard in self._directory.serving
        }
        verdict = prove(str(self._consumers.changelog), self._tables(), shards, self._ledger)
        self._console.print(
            f"copied: {verdict.copied:,} rows, beside the changes: the {self._held:,} that the "
            f"tables held before the producers started, and those of {SOURCE} for the split"
        )
        self._console.print(
            f"split: {self._ledger.refused} transactions were refused and done again on "
            f"{' and '.join(TARGETS)}; the log goes on there at {clock(verdict.hop_time_us)}"
        )
        different = ", ".join(
            f"{count} different in the {name}" for name, count in verdict.different.items()
        )
        self._console.print(
            f"proof: {verdict.rows_compared:,} rows of {len(shards)} databases "
            f"({', '.join(shards)}) compared with the change log replayed, and with the rows of "
            f"{' and '.join(self._tables())}: {different}; {verdict.moves} moves across shards "
            "seen in order"
        )
        self._say_where()
        self._console.print(verdict.last_line())
        return verdict.holds

    def _tables(self) -> dict[str, ReadTable]:
        tables = {CURRENT_STATE: state_reader(self._consumers.state)}
        if self._second is not None:
            tables[SECOND_DATABASE] = database_reader(self._second.url, self._second.password)
        return tables

    def _say_where(self) -> None:
        """Print queries of what the demo leaves behind."""
        here = Path.cwd()

        def query(path: Path, sql: str) -> None:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            command = f"  shardstream query {shown} '{sql}'"
            self._console.print(command, markup=False, soft_wrap=True)

        self._console.print("change log and current state are Delta tables; try:")
        counts = 'SELECT shard, "table", op, count(*) FROM log GROUP BY 1, 2, 3 ORDER BY 1, 2, 3'
        query(self._consumers.changelog, counts)
        orders = "SELECT status, count(*), sum(total) FROM log GROUP BY 1 ORDER BY 1"
        query(self._consumers.state / DATABASE / "orders", orders)
