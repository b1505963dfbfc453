"""`shardstream produce` as a user starts it: a process of its own, with a settings file."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.watch import server_cpu_s
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer
from shardstream.local.processes import ServerProcess
from topics.kafka_client import ClientConfig
from topics.names import ShardTopics
from topics.provisioning import provision_shard
from topics.tail import read_last_committed
from topics.wire import read_seq

STOP_S_MAX = 30.0

_SETTINGS = """\
[kafka]
bootstrap_servers = {brokers}
replication_factor = 1

[keyspaces.{keyspace}.shards.{shard}]
flavor = "mysql"

[[keyspaces.{keyspace}.shards.{shard}.servers]]
host = {host}
port = {port}
user = {user}
password_file = "password"
"""


@dataclass(frozen=True, slots=True)
class ShardOfServer:
    """A shard of a keyspace of the benchmarks, and the server that it is."""

    topics: ShardTopics
    server: MysqlServer
    bootstrap_servers: str

    @property
    def client(self) -> ClientConfig:
        """How to reach the broker."""
        return ClientConfig({"bootstrap.servers": self.bootstrap_servers})


class OurProducer:
    """The producer of one shard."""

    def __init__(self, folder: Path, shard: ShardOfServer, *, start: str) -> None:
        """Write the settings and make the topics; `start` is where the empty log begins."""
        self._shard = shard
        self._start = start
        self._folder = folder.resolve()
        self._folder.mkdir(parents=True)
        topics, server = shard.topics, shard.server
        self._settings = self._folder / "shardstream.toml"
        self._settings.write_text(
            _SETTINGS.format(
                brokers=json.dumps(shard.bootstrap_servers),
                keyspace=topics.keyspace,
                shard=json.dumps(topics.shard),
                host=json.dumps(server.host),
                port=server.port,
                user=json.dumps(server.user),
            )
        )
        (self._folder / "password").write_text(server.password)
        self._process = ServerProcess(
            f"producer of {topics.log}", self._folder, die_with_parent=True
        )
        provision_shard(shard.client, topics)

    def start(self) -> None:
        """Start the process; it is not waited for."""
        topics = self._shard.topics
        self._process.launch(
            [
                sys.executable,
                "-m",
                "shardstream",
                "produce",
                topics.keyspace,
                topics.shard,
                f"--config={self._settings}",
                f"--from={self._start}",
                "--json",
            ],
        )

    def check_alive(self) -> None:
        """Raise Halt with the log's tail when the process has ended."""
        self._process.check_alive()

    def cpu_s(self) -> float:
        """Processor time used since its start. Raises Halt when it has ended."""
        return server_cpu_s(self._process)

    def last_seq(self) -> int:
        """The number of records in the shard log, by the `seq` of its last committed one."""
        last = read_last_committed(self._shard.client, self._shard.topics.log)
        if last is None:
            return 0
        if last.value is None:
            message = f"{self._shard.topics.log} offset {last.offset} has no value"
            raise Halt(message)
        return read_seq(last.value)

    def stop(self) -> None:
        """Stop politely, else kill, and wait."""
        self._process.stop(STOP_S_MAX)

    def kill(self) -> None:
        """Kill and wait."""
        self._process.kill()
