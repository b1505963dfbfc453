"""`shardstream produce` as a user starts it: a separate process with a settings file."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.own_memory import peak_mb
from benchmarks.watch import handles, server_cpu_s
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer
from shardstream.local.processes import ServerProcess
from shardstream.settings.model import load_settings
from shardstream.settings.producer_settings import ensure_topology
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.kafka.provisioning import provision_shard
from topics.names import ShardTopics
from topics.records.envelope import read_seq

STOP_S_MAX = 30.0
# A backlog takes seconds; after this time a producer hangs.
DRAIN_S_MAX = 300.0
POLL_S = 0.05

_KAFKA = """\
[kafka]
bootstrap_servers = {brokers}
"""
_PRODUCER = "[producer]\n"
_SHARD = """
[keyspaces.{keyspace}.{kind}.{shard}]
flavor = "mysql"

[[keyspaces.{keyspace}.{kind}.{shard}.servers]]
host = {host}
port = {port}
user = {user}
password_file = {password_file}
"""


class BenchKeyspace:
    """A keyspace of the benchmarks: a settings file for the command, and its empty topics."""

    def __init__(
        self,
        folder: Path,
        name: str,
        brokers: str,
        servers: Mapping[str, MysqlServer],
        *,
        targets: Mapping[str, MysqlServer] | None = None,
        settings: str = "",
        server_settings: str = "",
    ) -> None:
        """Write the settings of all shards (`servers` by shard) and create their topics.

        `targets`: the same for targets of a reshard. `settings`: further tables of the settings
        file; `server_settings`: further lines of each server's table.
        """
        self.name = name
        self.folder = (folder / name).resolve()
        self.folder.mkdir()
        self.client = ClientConfig({"bootstrap.servers": brokers})
        self.settings = self.folder / "shardstream.toml"
        if _PRODUCER not in settings:
            settings = _PRODUCER + settings
        # The benchmarks' servers do not wait for the disk.
        settings = settings.replace(_PRODUCER, f"{_PRODUCER}accept_loss_at_server_crash = true\n")
        parts = [_KAFKA.format(brokers=json.dumps(brokers)), settings]
        named = [("shards", *each) for each in servers.items()]
        named += [("targets", *each) for each in (targets or {}).items()]
        for kind, shard, server in named:
            password_file = self.folder / f"{server.server_id}.password"
            password_file.write_text(server.password)
            parts.append(
                _SHARD.format(
                    keyspace=name,
                    kind=kind,
                    shard=json.dumps(shard),
                    host=json.dumps(server.host),
                    port=server.port,
                    user=json.dumps(server.user),
                    password_file=json.dumps(str(password_file)),
                )
            )
            parts.append(server_settings)
            provision_shard(self.client, ShardTopics(name, shard))
        self.settings.write_text("".join(parts))
        # A keyspace is created once, not at each start of a producer, so that is not measured.
        ensure_topology(load_settings(self.settings), name)


class OurProducer:
    """The producer of one shard."""

    def __init__(self, keyspace: BenchKeyspace, shard: str, *, start: str) -> None:
        """Set where the empty log begins (`--from`). Start nothing yet."""
        self.topics = ShardTopics(keyspace.name, shard)
        self._client = keyspace.client
        self._folder = keyspace.folder / f"producer{shard}"
        self._folder.mkdir()
        self._process = ServerProcess(
            f"producer of {self.topics.log}", self._folder, die_with_parent=True
        )
        # The process is found again by its folder's name in the command.
        settings = self._folder / "shardstream.toml"
        settings.symlink_to(keyspace.settings)
        self._command = [
            sys.executable,
            "-m",
            "shardstream",
            "produce",
            keyspace.name,
            shard,
            f"--config={settings}",
            f"--from={start}",
            "--json",
        ]

    def start(self) -> None:
        """Start the process, without waiting."""
        self._process.launch(self._command)

    def check_alive(self) -> None:
        """Raise Halt with the log's tail if the process has ended."""
        self._process.check_alive()

    def cpu_s(self) -> float:
        """Return the CPU time used since its start. Raises Halt if it has ended."""
        return server_cpu_s(self._process)

    def peak_mb(self) -> float:
        """Return the peak of its resident memory. Raises Halt if it has ended."""
        self._process.check_alive()
        return 0.0 if self._process.pid is None else peak_mb(str(self._process.pid))

    def handles(self) -> int:
        """Return how many files and sockets it has open. Raises Halt if it has ended."""
        self._process.check_alive()
        return 0 if self._process.pid is None else handles(self._process.pid)

    def wait_for_seq(self, seq: int) -> None:
        """Wait until the log has this number of records. Raises Halt if it does not get them."""
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while (found := self.last_seq()) < seq:
            self._process.check_alive()
            if time.monotonic() > deadline_s:
                message = f"{self.topics.log}: {found} of {seq} records after {DRAIN_S_MAX:g} s"
                raise Halt(message)
            time.sleep(POLL_S)

    def last_seq(self) -> int:
        """Return the number of records in the shard log, by the `seq` of its last committed one."""
        last = read_tail(self._client, self.topics.log).last
        if last is None:
            return 0
        if last.value is None:
            message = f"{self.topics.log} offset {last.offset} has no value"
            raise Halt(message)
        return read_seq(last.value)

    def stop(self) -> None:
        """Stop cleanly, or kill, and wait."""
        self._process.stop(STOP_S_MAX)

    def kill(self) -> None:
        """Kill and wait."""
        self._process.kill()
