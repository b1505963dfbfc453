"""The demo from beginning to end."""

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
from rich.console import Console
from rich.live import Live

from event_token.errors import Halt, UsageError
from shardstream.demo.proof import prove
from shardstream.demo.screen import render
from shardstream.demo.watch import ProgressWatch
from shardstream.demo.workers import Worker
from shardstream.demo.workload import Connect, Ledger, ShopWorkload, create_tables
from shardstream.keyspace_topology import ensure_topology
from shardstream.local.database_server import DatabaseServer
from shardstream.local.shape import StackShape
from shardstream.local.stack import Stack, flavor_at_hand
from shardstream.settings import load_settings
from shardstream.shard_settings import topic_settings
from topics.copy_control import CopyAction, CopyFeed, CopyRequest, CopyState, ask_and_wait
from topics.names import ShardTopics
from topics.provisioning import provision_shard
from topics.schema_registry import open_schema_ids

SHARDS = 2
SCREEN_INTERVAL_S = 0.25
# Spark starts in 10 s alone, and in a minute or so where two cores do everything at once.
CATCH_UP_S_MAX = 300.0
# Nothing but a file in the folder says that a demo made it: no other folder is ever removed.
MARKER = "shardstream-demo"
# Producers answer once they stream.
COPY_S_MAX = 120.0


def run_demo(seconds: int, folder: Path) -> bool:
    """Run everything for `seconds` of workload, then prove the result; True when it holds."""
    console = Console(highlight=False)
    folder = _fresh_folder(folder)
    began_s = time.monotonic()

    def report(message: str) -> None:
        console.print(f"[dim]{time.monotonic() - began_s:5.1f} s[/]  {message}")

    with ExitStack() as cleanup:
        flavor = flavor_at_hand(report)
        report(f"database: {'MySQL' if flavor == 'mysql' else 'MariaDB'}")
        shape = StackShape(flavor=flavor, shards=SHARDS, brokers=1)
        stack = Stack(folder / "stack", shape, die_with_parent=True, report=report)
        cleanup.callback(stack.kill)
        stack.start()
        demo = _Demo(console, folder, stack, cleanup)
        demo.begin(report)
        report("the tables are being copied; the workload begins")
        with Live(console=console, auto_refresh=False) as live:
            demo.write(seconds, live)
            demo.catch_up(live)
        console.print()
        return demo.prove()


def _fresh_folder(folder: Path) -> Path:
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            message = f"{folder} is not empty and no demo made it; name another with --folder"
            raise UsageError(message)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder


def _connect(server: DatabaseServer) -> Connect:
    def connect() -> Any:
        return pymysql.connect(
            host=server.host,
            port=server.port,
            user=server.root_user,
            init_command="SET time_zone = '+00:00'",
        )

    return connect


class _Demo:
    """The parts of a running demo."""

    def __init__(self, console: Console, folder: Path, stack: Stack, cleanup: ExitStack) -> None:
        self._console = console
        self._folder = folder
        self._cleanup = cleanup
        self._keyspace = stack.shape.keyspace
        self._settings_path = stack.settings_path
        self._shards = {name: _connect(server) for name, server in stack.databases.items()}
        self._ledger = Ledger()
        self._workload = ShopWorkload(self._shards, self._ledger)
        self._workers: list[Worker] = []
        self._held = 0
        self._copies: list[CopyFeed] = []
        self._watch: ProgressWatch
        self._changelog: Worker

    def begin(self, report: Callable[[str], None]) -> None:
        """Fill the tables, make the topics, start producers, the change log and the copies."""
        for connect in self._shards.values():
            create_tables(connect)
        self._held = self._workload.fill()
        report(f"the shop's tables hold {self._held:,} rows; producers start behind them")
        settings = load_settings(self._settings_path)
        ensure_topology(settings, self._keyspace)
        for shard in self._shards:
            topics = ShardTopics(self._keyspace, shard)
            provision_shard(settings.kafka_client(), topics, topic_settings(settings))
            arguments = ["produce", self._keyspace, shard, "--from", "current"]
            self._start_worker(f"producer_{shard}", arguments)
        client = settings.kafka_client()
        schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
        self._watch = ProgressWatch(client, self._keyspace, list(self._shards), schema_ids)
        self._cleanup.callback(self._watch.close)
        arguments = [
            "changelog",
            self._keyspace,
            "--target",
            str(self._table),
            "--from",
            "earliest",
        ]
        self._changelog = self._start_worker("changelog", arguments)
        report("the Spark change log is starting; the producers are asked to copy the tables")
        for shard in self._shards:
            topics = ShardTopics(self._keyspace, shard)
            answer = ask_and_wait(client, topics, CopyRequest(CopyAction.START), COPY_S_MAX)
            if answer.problems:
                raise Halt("\n".join(answer.problems))
            feed = CopyFeed(client, topics)
            self._cleanup.callback(feed.close)
            feed.read_to_end()
            self._copies.append(feed)

    def _are_copied(self) -> bool:
        for feed in self._copies:
            feed.poll(0)
        copies = [copy for feed in self._copies for copy in feed.tables.values()]
        if failed := [copy.note for copy in copies if copy.state is CopyState.FAILED]:
            raise Halt("\n".join(failed))
        return all(copy.state is CopyState.COMPLETED for copy in copies)

    @property
    def _table(self) -> Path:
        return self._folder / "changelog"

    def _start_worker(self, name: str, arguments: list[str]) -> Worker:
        config = ["--config", str(self._settings_path), "--json"]
        worker = Worker(name, self._folder, [*arguments, *config])
        self._cleanup.callback(worker.kill)
        self._workers.append(worker)
        return worker

    def write(self, seconds: int, live: Live) -> None:
        """Let the workload run, and show what happens."""
        self._workload.start()
        ends_s = time.monotonic() + seconds
        self._show(live, "orders are coming in", lambda: time.monotonic() >= ends_s)
        self._workload.stop()

    def catch_up(self, live: Live) -> None:
        """Wait until everything written is in the change log."""
        ends_s = time.monotonic() + CATCH_UP_S_MAX

        def done() -> bool:
            if time.monotonic() > ends_s:
                raise Halt(
                    f"after {CATCH_UP_S_MAX:.0f} s the change log holds {self._changelog_rows} of "
                    f"{self._ledger.changes} changes; logs are in {self._folder}"
                )
            in_logs = self._watch.rows
            # Copied rows count too, so the logs hold more than the workload's changes.
            written = self._are_copied() and in_logs >= self._ledger.changes
            return written and self._changelog_rows >= in_logs

        self._show(live, "the workload has ended; the change log catches up", done)
        for worker in self._workers:
            worker.ask_to_stop()
        for worker in self._workers:
            worker.stop()

    def _show(self, live: Live, phase: str, done: Callable[[], bool]) -> None:
        while not done():
            for worker in self._workers:
                worker.check_alive()
            self._watch.look(SCREEN_INTERVAL_S)
            view = render(self._watch, self._ledger, self._changelog_rows, phase)
            live.update(view, refresh=True)

    @property
    def _changelog_rows(self) -> int:
        line = self._changelog.last_output()
        return int(json.loads(line)["rows"]) if line else 0

    def prove(self) -> bool:
        """Compare, and say what was found; the verdict is the last line."""
        verdict = prove(str(self._table), self._shards, self._ledger)
        self._console.print(
            f"copied: {verdict.copied:,} rows, beside the changes, of tables that held "
            f"{self._held:,} before the producers started"
        )
        self._console.print(
            f"proof: {verdict.rows_compared:,} rows of {len(self._shards)} databases compared with "
            f"the change log replayed: {verdict.rows_different} different; "
            f"{verdict.moves} moves across shards seen in order"
        )
        self._console.print(f"the change log is the Delta table {self._table}; try:")
        query = 'SELECT shard, "table", op, count(*) FROM log GROUP BY 1, 2, 3 ORDER BY 1, 2, 3'
        self._console.print(
            f"  shardstream query {self._table} '{query}'", markup=False, soft_wrap=True
        )
        self._console.print(verdict.last_line())
        return verdict.holds
