"""What every demo is made of: servers, the shop, commands that run, timed steps, and a split."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from event_token import Flavor
from event_token.errors import Halt, UsageError
from shardstream.demo.shop import (
    APPLICATION,
    RESHARD_ID,
    SOURCE,
    TARGETS,
    BackgroundWork,
    Connect,
    ShardDirectory,
    connect_as,
    connect_as_root,
    create_tables,
    make_accounts,
    shop_settings,
)
from shardstream.local.database_server import NOT_DURABLE
from shardstream.local.fetching import Report
from shardstream.local.processes import wait_or_kill, with_parent_guard
from shardstream.local.stack import Stack, StackShape, flavor_at_hand
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import ensure_topology, topic_settings
from shardstream.status.refresh import FleetRefresh, open_fleet
from topics.fleet.view import KeyspaceView
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.copy_topic import CopyFeed, CopyState

# A producer stops within a second of the signal, Spark within a few.
STOP_S_MAX = 30.0
LOG_TAIL_LINES = 15


class Worker:
    """One program of this package, which logs to a file and dies with this process."""

    def __init__(
        self, name: str, folder: Path, arguments: Sequence[str], secrets: Mapping[str, str]
    ) -> None:
        """Start it; `arguments`: module and its own; `secrets`: variables, which no user reads."""
        self.name = name
        self.log_path = folder / f"{name}.log"
        self.output_path = folder / f"{name}.json"
        command = [sys.executable, "-m", *arguments]
        with self.log_path.open("wb") as log, self.output_path.open("wb") as output:
            # A separate session: Ctrl-C reaches only this process, which stops the others in order.
            self._process = subprocess.Popen(
                with_parent_guard(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env={**os.environ, **secrets},
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status; None while the process runs."""
        return self._process.poll()

    def failure(self) -> Halt:
        """Return the error that says how the process ended, with the end of its log."""
        # A command reports what it found wrong in its output.
        text = self.log_path.read_text(errors="replace") or self.output_path.read_text()
        tail = "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
        return Halt(f"{self.name} ended with status {self.status}:\n{tail}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM without waiting."""
        self._process.terminate()

    def stop(self) -> None:
        """Ask it to stop, wait, and kill it if it does not."""
        self.ask_to_stop()
        wait_or_kill(self._process, STOP_S_MAX)

    def kill(self) -> None:
        """Kill and wait."""
        self._process.kill()
        self._process.wait()

    def output(self) -> list[dict[str, Any]]:
        """Return the JSON objects that the process has printed, one per complete line."""
        return [json.loads(line) for line in self._lines()]

    def last_output(self) -> dict[str, Any]:
        """Return the last of them, empty if there is none."""
        lines = self._lines()
        return dict(json.loads(lines[-1])) if lines else {}

    def _lines(self) -> list[str]:
        return self.output_path.read_text().rpartition("\n")[0].splitlines()


class Workers:
    """The demo's running commands: none may end by itself, and all end with the demo."""

    def __init__(self, folder: Path, settings_path: Path) -> None:
        """Start nothing yet; outputs and logs go to the folder."""
        self._folder = folder
        self._settings_path = settings_path
        self._all: list[Worker] = []
        self._serving: dict[str, Worker] = {}

    def start(self, name: str, *arguments: str) -> Worker:
        """Start a command that runs until it is stopped."""
        worker = self._serving[name] = self.run(name, *arguments, "--json")
        return worker

    def run(self, name: str, *arguments: str) -> Worker:
        """Start a command that ends by itself."""
        return self._start(name, ["shardstream", *arguments, "--config", str(self._settings_path)])

    def start_job(self, name: str, job: Sequence[str], secrets: Mapping[str, str]) -> Worker:
        """Start another module, with its arguments, that runs until it is stopped."""
        worker = self._serving[name] = self._start(name, job, secrets)
        return worker

    def _start(
        self, name: str, command: Sequence[str], secrets: Mapping[str, str] | None = None
    ) -> Worker:
        worker = Worker(name, self._folder, command, secrets or {})
        self._all.append(worker)
        return worker

    def release(self, name: str) -> Worker:
        """Ask one to stop; from now on it may end."""
        worker = self._serving.pop(name)
        worker.ask_to_stop()
        return worker

    def kill_one(self, name: str) -> None:
        """Kill one without warning."""
        self._serving.pop(name).kill()

    def check(self) -> None:
        """Raise Halt if one has ended unasked."""
        for worker in self._serving.values():
            if worker.status is not None:
                raise worker.failure()

    def stop(self) -> None:
        """Stop all in order."""
        for worker in self._serving.values():
            worker.ask_to_stop()
        for worker in self._serving.values():
            worker.stop()

    def kill(self) -> None:
        """Kill all."""
        for worker in self._all:
            worker.kill()


SHARDS: Final = 2
# Nothing but a file in the folder says that a demo made it: no other folder is ever removed.
MARKER: Final = "shardstream-demo"
LOOK_S: Final = 0.25
# Most of what is waited for takes seconds; this is for a busy machine.
STEP_S_MAX: Final = 120.0
# A whole split takes about 15 s if the demo has the machine to itself.
SPLIT_S_MAX: Final = 300.0
# On a busy machine a target may lag at the moment of the switch, which then changes nothing.
TRIES_MAX: Final = 5
# Closer than the switch requires, so that its first attempt usually succeeds.
FOLLOW_MS: Final = 2_000


def fresh_folder(folder: Path) -> Path:
    """Return the folder, empty; UsageError if it holds anything but an earlier demo."""
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise UsageError(
                f"{folder} is not empty and no demo made it; name another with --folder"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    return folder


def timed_report(console: Console) -> Report:
    """Return a function that prints messages with the seconds since now."""
    began_s = time.monotonic()

    def report(message: str) -> None:
        at = f"{time.monotonic() - began_s:5.1f} s"
        console.print(f"[dim]{at}[/]  {message}", soft_wrap=True)

    return report


class Story:
    """A demo in one folder; `phase` and `doing` (in the split) are for its screen."""

    def __init__(
        self,
        folder: Path,
        report: Report,
        cleanup: ExitStack,
        *,
        flavor: Flavor | None = None,
        targets: tuple[str, ...] = TARGETS,
        redis: bool = False,
    ) -> None:
        """Start nothing yet; `cleanup` will kill everything that is started.

        `flavor`: the database family; None takes MySQL where it is available, else MariaDB.
        """
        self.folder = folder
        self.report = report
        self.cleanup = cleanup
        self.phase = self.doing = ""
        self._background: list[BackgroundWork] = []
        flavor = flavor or flavor_at_hand(report)
        report(f"database: {'MySQL' if flavor == 'mysql' else 'MariaDB'}")
        shape = StackShape(flavor=flavor, shards=SHARDS, brokers=1, targets=targets, redis=redis)
        self.stack = Stack(
            folder / "stack", shape, die_with_parent=True, extra_args=NOT_DURABLE, report=report
        )
        cleanup.callback(self.stack.kill)
        self.keyspace = shape.keyspace
        servers = self.stack.databases
        self.sources = [shard for shard in servers if shard not in targets]
        self.writers: dict[str, Connect] = {s: connect_as(servers[s], APPLICATION) for s in servers}
        self.roots: dict[str, Connect] = {s: connect_as_root(servers[s]) for s in servers}
        self.workers = Workers(folder, self.stack.settings_path)
        cleanup.callback(self.workers.kill)

    def open_shop(
        self,
        sharding_columns: Mapping[str, str],
        tables: str,
        settings_text: str = "",
        heartbeat_rows: str = "replicas",
    ) -> None:
        """Make accounts, tables (a script) and settings on servers that run; nothing is written.

        `settings_text`: more of the settings file. `heartbeat_rows`: as in the settings.
        """
        for shard, server in self.stack.databases.items():
            make_accounts(server, is_target=shard not in self.sources)
        for shard in self.sources:
            create_tables(self.stack.databases[shard], tables)
        with self.stack.settings_path.open("a") as file:
            shop = shop_settings(self.keyspace, sharding_columns, heartbeat_rows)
            file.write(shop + settings_text)
        self.settings = load_settings(self.stack.settings_path)
        self.client = self.settings.kafka_client()
        ensure_topology(self.settings, self.keyspace)
        self.directory = ShardDirectory(self.keyspace, self.client)

    def start_producers(self) -> None:
        """Start the producers of the shop's shards, and the reading of their progress."""
        for shard in self.sources:
            topics = ShardTopics(self.keyspace, shard)
            provision_shard(self.client, topics, topic_settings(self.settings))
            self.workers.start(f"producer_{shard}", "produce", self.keyspace, shard)
        opened = partial(open_fleet, self.settings)
        self._fleet = FleetRefresh(opened, [self.keyspace], LOOK_S)
        self.cleanup.enter_context(self._fleet)

    def last_seq(self, shard: str) -> int:
        """Return the number of the last record of a shard's log."""
        topics = ShardTopics(self.keyspace, shard)
        progress = last_progress(self.client, topics, self.settings.schema_ids())
        return 0 if progress is None else progress.last_seq

    def look_after(self, work: BackgroundWork) -> None:
        """Let `check` raise the errors of work, and end it with the demo."""
        self.cleanup.callback(work.ask_to_stop)
        self._background.append(work)

    def check(self) -> None:
        """Raise Halt or an error if a command or a thread has ended by itself."""
        self.workers.check()
        for work in self._background:
            work.check()

    def wait(
        self,
        done: Callable[[], bool],
        problem: str,
        *,
        s_max: float = STEP_S_MAX,
        look_s: float = LOOK_S,
    ) -> None:
        """Wait until `done` holds. Halt with `problem` if that takes too long."""
        ends_s = time.monotonic() + s_max
        while not done():
            self.check()
            if time.monotonic() > ends_s:
                doing = f": {self.doing}" if self.doing else ""
                raise Halt(f"{problem}, after {s_max:.0f} s{doing}")
            time.sleep(look_s)

    def let_run(self, until_s: float) -> None:
        """Let everything run until a moment of the monotonic clock."""
        while time.monotonic() < until_s:
            self.check()
            time.sleep(LOOK_S)

    @property
    def view(self) -> KeyspaceView | None:
        """The shards as they were read last, None before the first time."""
        [state] = self._fleet.state().keyspaces
        return state.view

    def panel(self, title: str, parts: list[RenderableType]) -> Panel:
        """Return the screen: a demo's parts, and what the split does."""
        if self.doing:
            parts.append(Text.assemble((f"split of {SOURCE}: ", "dim"), self.doing))
        return Panel(Group(*parts), title=f"{title}: {self.phase}", padding=(1, 2))

    def split(self, prefix: str = "") -> None:
        """Split `80-` into `80-c0` and `c0-` by the commands that an operator would run."""
        with closing(CopyFeed(self.client, ShardTopics(self.keyspace, SOURCE))) as copies:
            _Split(self, copies, lambda message: self.report(prefix + message)).run()


class _Split:
    """The steps of a split. Halt if one fails or takes too long. `copies`: of the source."""

    def __init__(self, story: Story, copies: CopyFeed, report: Report) -> None:
        self._story = story
        self._workers = story.workers
        self._copies = copies
        self._report = report

    def run(self) -> None:
        shards = [f"--source={SOURCE}", *(f"--target={target}" for target in TARGETS)]
        self._command("create", "the reshard is being created", *shards)
        self._report(f"reshard created: {SOURCE} is to become {' and '.join(TARGETS)}")
        self._fill()
        doing = "comparing source and targets row by row"
        found = self._command("verify", doing, "--json", tries=TRIES_MAX).output()
        rows = " and ".join(f"{one['rows']:,} rows of {one['target']}" for one in found)
        self._report(f"verified: {rows}, {sum(one['differing'] for one in found)} differ")
        worker = self._command("switch", "switching", "--json", tries=TRIES_MAX)
        stopped_ms = worker.last_output()["stopped_ms"]
        # None if one attempt stopped writes and a later one opened them.
        how_long = "by an earlier attempt" if stopped_ms is None else f"for {stopped_ms} ms"
        self._report(f"switched: writes were stopped {how_long}")
        self._retire()
        self._story.doing = f"done; writes were stopped {how_long}"

    def _command(self, verb: str, doing: str, *options: str, tries: int = 1) -> Worker:
        """Run a command of `shardstream reshard`, and repeat it if it fails."""
        arguments = ("reshard", verb, self._story.keyspace, RESHARD_ID, *options)
        for attempt in range(1, tries + 1):
            worker = self._workers.run(f"reshard_{verb}_{attempt}", *arguments)
            self._end([worker], doing, shows_steps="--json" in options)
            if worker.status == 0:
                return worker
        raise worker.failure()

    def _fill(self) -> None:
        """Wait until each target has the copied rows and the changes made meanwhile."""
        appliers = {}
        for target in TARGETS:
            self._workers.start(f"producer_{target}", "produce", self._story.keyspace, target)
            run = ("reshard", "run", self._story.keyspace, RESHARD_ID, target, "--every", "1")
            appliers[target] = self._workers.start(f"applier_{target}", *run)
        self._copies.read_to_end()

        def is_copied() -> bool:
            self._copies.poll(0)
            self._story.doing = f"{self._rows:,} rows copied"
            return are_complete(self._copies)

        self._wait(is_copied)
        copied = self._story.last_seq(SOURCE)
        lags = ""

        def is_applied() -> bool:
            nonlocal lags
            found = {target: applier.last_output() for target, applier in appliers.items()}
            lags = ", ".join(f"{target} {_lag(status)}" for target, status in found.items())
            self._story.doing = f"the targets apply; behind the source: {lags}"
            return all(_follows(status, copied) for status in found.values())

        self._wait(is_applied)
        self._report(f"{self._rows:,} rows copied; behind the source: {lags}")

    @property
    def _rows(self) -> int:
        return sum(copy.rows for copy in self._copies.tables.values())

    def _retire(self) -> None:
        """Stop the source: even a late reader only needs its log, which stays."""
        self._release([f"applier_{target}" for target in TARGETS])
        self._command("complete", "cleaning up", tries=TRIES_MAX)
        self._release([f"producer_{SOURCE}"])
        server = self._story.stack.databases[SOURCE]
        server.ask_to_stop()
        self._story.doing = f"the server of {SOURCE} stops"
        self._wait(lambda: server.pid is None)
        self._report(f"{SOURCE} is gone, with its producer and its database server")

    def _release(self, names: list[str]) -> None:
        workers = [self._workers.release(name) for name in names]
        self._end(workers, f"{', '.join(names)} end")

    def _end(self, workers: list[Worker], doing: str, *, shows_steps: bool = False) -> None:
        """Wait until commands have ended; `shows_steps`: a command prints the step it is at."""

        def have_ended() -> bool:
            step = workers[0].last_output().get("step", doing) if shows_steps else doing
            self._story.doing = str(step)
            return all(worker.status is not None for worker in workers)

        self._wait(have_ended)

    def _wait(self, done: Callable[[], bool]) -> None:
        self._story.wait(done, "the split has not ended", s_max=SPLIT_S_MAX)


def are_complete(copies: CopyFeed) -> bool:
    """Whether all tables are copied. Halt if a copy has failed."""
    tables = list(copies.tables.values())
    if failed := [f"{copy.name}: {copy.note}" for copy in tables if copy.state is CopyState.FAILED]:
        raise Halt("\n".join(failed))
    return all(copy.state is CopyState.COMPLETED for copy in tables)


def _lag(status: dict[str, Any]) -> str:
    return f"{status['behind_ms']:,} ms" if status else "starting"


def _follows(status: dict[str, Any], seq: int) -> bool:
    """Whether an applier has reached `seq` of the source and is close to its end."""
    return bool(status) and status["seqs"].get(SOURCE, 0) >= seq and status["behind_ms"] < FOLLOW_MS
