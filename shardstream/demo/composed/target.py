"""A target of the split: it waits for the reshard, then runs the shard's producer and applier."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Final

from event_token.errors import Halt
from shardstream.commands.status_lines import print_line
from shardstream.demo.composed.scraped import ScrapedFile
from shardstream.demo.composed.servers import KEYSPACE
from shardstream.local.processes import wait_or_kill, with_parent_guard
from shardstream.settings.model import Settings
from topics.keyspace.topology import ReshardEntry, ReshardState, read_topology

# What the topology says is looked up this often; the read is one small record.
POLL_S: Final = 2.0
# Where Prometheus scrapes them, inside the stack's network.
PRODUCER_PORT: Final = 9644
APPLIER_PORT: Final = 9645
# As long as Compose's default leaves a container, less a second.
STOP_S_MAX: Final = 9.0


class Target:
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
            while not stop.wait(POLL_S):
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
        topology = read_topology(self._settings.kafka_client(), KEYSPACE)
        for entry in reversed(() if topology is None else topology.reshards):
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


def _start(port: int, *arguments: str) -> subprocess.Popen[bytes]:
    http = ("--http", f"0.0.0.0:{port}", "--no-auth")
    command: Sequence[str] = [sys.executable, "-m", "shardstream", *arguments, *http]
    return subprocess.Popen(with_parent_guard(command), env=os.environ)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.terminate()
        wait_or_kill(process, STOP_S_MAX)
