"""`shardstream-shop`, the shop of the Docker Compose stack: traffic, and the split of a shard."""

import json
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from caching.errors import Stale
from databases.errors import ServerLost
from event_token.errors import Halt, Retry, ShardstreamError, UsageError
from shardstream.commands.app import EXIT_FAILED, exit_status
from shardstream.commands.options import SHARD_NAMES, CommandLine, Config, Json
from shardstream.commands.status_lines import Status, StatusLines, print_line
from shardstream.demo.composed.pages import KEYSPACE, PageCache, check_pages, connects
from shardstream.demo.shop import (
    APPLICATION,
    RESHARD_ID,
    SOURCE,
    TARGETS,
    BackgroundWork,
    CommittedChange,
    Connect,
    ShardDirectory,
)
from shardstream.demo.workload import ShopWorkload
from shardstream.local.processes import wait_or_kill, with_parent_guard
from shardstream.process_end import ends_process
from shardstream.settings.model import Settings, load_settings
from shardstream.stop_signals import stop_on_signals
from topics.keyspace.topology import ReshardEntry, ReshardState, read_topology

# What the topology says is looked up this often; the read is one small record.
LOOK_S: Final = 2.0
# Where Prometheus scrapes them, inside the stack's network.
PRODUCER_PORT: Final = 9644
APPLIER_PORT: Final = 9645
# As long as Compose's default leaves a container, less a second.
STOP_S_MAX: Final = 9.0
# A volume that Prometheus watches, see docker/prometheus/prometheus.yml.
SCRAPED_FOLDER: Final = Path("/scraped")


class SplitTarget:
    """The processes of one target, as an operator would run them."""

    def __init__(self, settings: Settings, shard: str) -> None:
        """Start nothing yet."""
        self._settings = settings
        self._shard = shard
        self._producer: subprocess.Popen[bytes] | None = None
        self._applier: subprocess.Popen[bytes] | None = None
        self._scraped = ScrapedFile(socket.gethostname())

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Halt if a process ends unasked."""
        self._say(f"waiting for a reshard with the target {self._shard}")
        try:
            self._name_scraped()
            while not stop.wait(LOOK_S):
                self.look()
                self._name_scraped()
        finally:
            for process in (self._applier, self._producer):
                _end(process)

    def look(self) -> None:
        """Start and end what the topology asks for."""
        entry = self._reshard()
        if entry is None:
            return
        is_filling = entry.state == ReshardState.RUNNING.value
        if is_filling and self._applier is None:
            run = ("reshard", "run", KEYSPACE, entry.reshard_id, self._shard)
            self._applier = _start(APPLIER_PORT, *run)
        if self._producer is None:
            produce = ("produce", KEYSPACE, self._shard)
            self._producer = _start(PRODUCER_PORT, *produce)
        if self._producer.poll() is not None:
            raise Halt(f"the producer of {self._shard} ended ({self._producer.returncode})")
        if not is_filling:
            _end(self._applier)
            self._applier = None
        elif self._applier is not None and self._applier.poll() is not None:
            self._look_again()

    def _look_again(self) -> None:
        # The switch may have ended what the applier follows after the topology was read.
        entry = self._reshard()
        if entry is not None and entry.state == ReshardState.RUNNING.value:
            raise Halt(f"the applier of {self._shard} ended")

    def _reshard(self) -> ReshardEntry | None:
        """Return the newest reshard with this target that was not cancelled."""
        for entry in reversed(reshards(self._settings)):
            if self._shard in entry.targets and entry.state != ReshardState.CANCELLED.value:
                return entry
        return None

    def _name_scraped(self) -> None:
        running = ((PRODUCER_PORT, self._producer), (APPLIER_PORT, self._applier))
        try:
            self._scraped.name([port for port, process in running if process is not None])
        except OSError as error:
            # Who cannot be watched works all the same.
            self._say(f"Prometheus does not scrape what runs here: {error}")

    def _say(self, text: str) -> None:
        print_line(f"{KEYSPACE}/{self._shard}", text, {}, as_json=False)


class ScrapedFile:
    """A file of Prometheus' service discovery: the processes of one container come and go."""

    def __init__(self, host: str, folder: Path = SCRAPED_FOLDER) -> None:
        """Write nothing yet. `host`: the container's name in the stack's network."""
        self._host = host
        self._path = folder / f"{host}.json"
        self._ports: Sequence[int] | None = None

    def name(self, ports: Sequence[int]) -> None:
        """Name the ports to scrape from now on, if they are others than before. Raises OSError."""
        if ports == self._ports:
            return
        targets = [f"{self._host}:{port}" for port in ports]
        written = self._path.with_suffix(".part")
        written.write_text(json.dumps([{"targets": targets}]) + "\n")
        # At once: Prometheus may read it at any moment.
        written.replace(self._path)
        self._ports = ports


def reshards(settings: Settings) -> tuple[ReshardEntry, ...]:
    """Return the reshards of the topology, the oldest first."""
    topology = read_topology(settings.kafka_client(), KEYSPACE)
    return () if topology is None else topology.reshards


def _start(port: int, *arguments: str) -> subprocess.Popen[bytes]:
    http = ("--http", f"0.0.0.0:{port}", "--no-auth")
    command: Sequence[str] = [sys.executable, "-m", "shardstream", *arguments, *http]
    return subprocess.Popen(with_parent_guard(command), env=os.environ)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.terminate()
        wait_or_kill(process, STOP_S_MAX)


# Producers write the topology when they start for the first time.
TOPOLOGY_S_MAX: Final = 300.0
POLL_S: Final = 1.0
# Few enough that most views are hits, although every tenth transaction changes a customer.
CUSTOMERS: Final = 100
VIEW_INTERVAL_S: Final = 0.05
# A step of the split takes a minute where the stack has the machine to itself, ten times that on
# two busy cores.
STEP_S_MAX: Final = 600.0
# Each attempt starts a Python; what it waits for takes seconds.
PAUSE_S: Final = 2.0

app = CommandLine(
    name="shardstream-shop",
    help="The shop of the Docker Compose stack: traffic, and the split of a shard.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def run(config: Config = None, *, as_json: Json = False) -> None:
    """Write orders and read pages until SIGINT or SIGTERM; the last line counts the changes."""
    stop = stop_on_signals()
    settings = load_settings(config)
    if _wait_for_topology(settings, stop):
        _run_traffic(settings, stop, StatusLines(as_json=as_json))


@app.command(context_settings=SHARD_NAMES)
def target(
    shard: Annotated[str, typer.Argument(help="Target, e.g. 80-c0")], config: Config = None
) -> None:
    """Wait for the split, then run the producer and the applier of one of its targets."""
    stop = stop_on_signals()
    SplitTarget(load_settings(config), shard).run(stop)


@app.command()
def split(config: Config = None) -> None:
    """Split a shard while the shop goes on writing."""
    # It can be run again after a failure. Its steps are commands that an operator types.
    found = reshards(load_settings(config))
    entry = next((each for each in found if each.reshard_id == RESHARD_ID), None)
    if entry is not None and entry.state == ReshardState.COMPLETED.value:
        raise UsageError(f"{SOURCE} is split already, into {' and '.join(TARGETS)}")
    if entry is None:
        targets = [word for target in TARGETS for word in ("--target", target)]
        _step("create", "--source", SOURCE, *targets, is_repeated=False)
    if entry is None or entry.state == ReshardState.RUNNING.value:
        typer.echo("the targets' producers and appliers copy and follow; verify waits for them")
        _step("verify")
        _step("switch")
    _step("complete")
    typer.echo(f"{SOURCE} is split; its producer and its database may be stopped")


@app.command()
def pages(config: Config = None) -> None:
    """Compare every page in the cache with the databases; exit with 1 if one differs."""
    if not check_pages(load_settings(config), typer.echo):
        raise typer.Exit(EXIT_FAILED)


class Visitors(BackgroundWork):
    """One thread that reads pages; a server that is being restarted is visited again later."""

    def __init__(self, settings: Settings, directory: ShardDirectory, first_id: int) -> None:
        """Read nothing yet; `first_id`: the customers whose pages are read begin here."""
        super().__init__()
        self.views = 0
        self._settings = settings
        self._directory = directory
        self._first_id = first_id
        self._prepare([self._visit])

    def _visit(self) -> None:
        cache = PageCache(self._settings, self._directory)
        chance = random.Random(1)  # noqa: S311 - a workload, not a secret
        try:
            while not self._stop.wait(VIEW_INTERVAL_S):
                try:
                    cache.page(self._first_id + chance.randrange(CUSTOMERS))
                except (ServerLost, Stale, Retry):
                    continue
                self.views += 1
        finally:
            cache.close()


def _run_traffic(settings: Settings, stop: threading.Event, lines: StatusLines) -> None:
    """Write and read until `stop` is set. Raises what ended a writer or a visitor.

    The last line counts what was written, also after an error: the next run does not know of it.
    """
    directory = ShardDirectory(KEYSPACE, settings.kafka_client())
    # The account that a switch locks.
    shards = connects(settings, APPLICATION)
    serving = {shard: shards[shard] for shard in directory.serving}
    first = 1 + max(_largest(serving, "id", "customers"), _largest(serving, "id >> 8", "orders"))
    workload = ShopWorkload(directory, shards, first_id=first)
    visitors = Visitors(settings, directory, first)
    work = (workload, visitors)
    try:
        _remove_coupons(serving, workload)
        for committed in workload.write_first():
            workload.ledger.add(committed)
        for part in work:
            part.start()
        while not stop.wait(POLL_S):
            for part in work:
                part.check()
            lines.report(_status(workload, visitors))
    finally:
        for part in work:
            part.ask_to_stop()
        for part in work:
            part.wait()
        lines.report(_status(workload, visitors, "stopped: "), at_once=True)
    for part in work:
        part.check()


def _remove_coupons(serving: dict[str, Connect], workload: ShopWorkload) -> None:
    """Remove the coupons, some of which may have been on the way when the shop was stopped."""
    for shard, connect in serving.items():
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM coupons")
            connection.commit()
            workload.ledger.add(CommittedChange(shard, cursor.rowcount, 0))


def _wait_for_topology(settings: Settings, stop: threading.Event) -> bool:
    """Return False if the shop is stopped before there is a topology. Raises Retry in the end."""
    ends_s = time.monotonic() + TOPOLOGY_S_MAX
    while read_topology(settings.kafka_client(), KEYSPACE) is None:
        if time.monotonic() > ends_s:
            raise Retry(f"no producer has written the topology within {TOPOLOGY_S_MAX:.0f} s")
        if stop.wait(POLL_S):
            return False
    return True


def _largest(shards: dict[str, Connect], column: str, table: str) -> int:
    """Return the largest value of an integer column on these shards; 0 if there is no row."""
    found = 0
    for connect in shards.values():
        with connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT COALESCE(MAX({column}), 0) FROM {table}")  # noqa: S608 - ours
            # MAX of an unsigned column and 0 is a DECIMAL.
            found = max(found, int(cursor.fetchone()[0]))
    return found


def _status(workload: ShopWorkload, visitors: Visitors, began: str = "") -> Status:
    ledger = workload.ledger
    text = (
        f"{began}{ledger.changes:,} row changes in {ledger.transactions:,} transactions, "
        f"{ledger.refused:,} refused and repeated; {visitors.views:,} pages read"
    )
    fields = {
        "changes": ledger.changes,
        "transactions": ledger.transactions,
        "refused": ledger.refused,
        "pages": visitors.views,
        "stopped": bool(began),
    }
    return Status("shop", text, fields, progress=ledger.changes)


def _step(verb: str, *options: str, is_repeated: bool = True) -> None:
    """Run `shardstream reshard VERB`, and again while it refuses because something is not ready.

    Halt if it does not succeed in ten minutes.
    """
    arguments = ["reshard", verb, KEYSPACE, RESHARD_ID, *options]
    typer.echo(f"$ shardstream {' '.join(arguments)}")
    ends_s = time.monotonic() + STEP_S_MAX
    while True:
        command = [sys.executable, "-m", "shardstream", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            typer.echo(done.stdout.rstrip())
            return
        output = (done.stdout + done.stderr).rstrip()
        if not is_repeated or time.monotonic() > ends_s:
            raise Halt(
                f"`shardstream {' '.join(arguments)}` ended with {done.returncode}:\n{output}"
            )
        time.sleep(PAUSE_S)


def main() -> None:
    """Run a command; report a ShardstreamError as one message and an exit status."""
    # The Kafka client logs every transient fault; those that matter are raised as errors.
    logging.getLogger("shardstream.kafka").setLevel(logging.CRITICAL + 1)
    with ends_process():
        try:
            app()
        except ShardstreamError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(exit_status(error))


if __name__ == "__main__":
    main()
