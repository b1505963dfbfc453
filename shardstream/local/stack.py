"""A whole stack in one folder: one database server per shard, Kafka, and caches; its producers."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from event_token import Flavor, Halt, UsageError
from shardstream.local.cache_server import CacheServer, MemcachedServer, RedisServer
from shardstream.local.database_binaries import find_mysql
from shardstream.local.database_server import (
    LocalAccount,
    LocalDatabase,
    MariadbServer,
    MysqlServer,
)
from shardstream.local.fetching import Report, quiet
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.processes import wait_or_kill, with_parent_guard

DEFAULT_KEYSPACE = "commerce"
ACCOUNT_USER = "shardstream"
# A database server takes about 400 MB; with more than this it is no longer a local stack.
SHARDS_MAX = 16
STATE_VERSION = 1

PASSWORD_FILE = "password"  # noqa: S105 - the name of the file that holds it
SETTINGS_FILE = "shardstream.toml"


class StackShape(BaseModel):
    """The number of servers and their family, one database server per shard.

    `targets`: shards that a reshard fills, each with a server too. `redis` and `memcached`: a
    server each, which a stack can get later and keeps.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    flavor: Flavor
    shards: int = Field(ge=1, le=SHARDS_MAX)
    brokers: int = Field(ge=1)
    keyspace: str = DEFAULT_KEYSPACE
    targets: tuple[str, ...] = ()
    redis: bool = False
    memcached: bool = False

    def __str__(self) -> str:
        """Return it as on the command line."""
        servers = self.shards + len(self.targets)
        return f"{servers} x {self.flavor} and {self.brokers} x kafka"

    @property
    def caches(self) -> list[str]:
        """The kinds of the cache servers."""
        wanted = {"redis": self.redis, "memcached": self.memcached}
        return [kind for kind, is_wanted in wanted.items() if is_wanted]

    def with_caches_of(self, other: "StackShape") -> "StackShape":
        """Return this shape with the cache servers of both."""
        caches = {
            "redis": self.redis or other.redis,
            "memcached": self.memcached or other.memcached,
        }
        return self.model_copy(update=caches)


class StackState(BaseModel):
    """The state file of a stack's folder; ports and pids are in the servers' folders."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = STATE_VERSION
    shape: StackShape


class BrokerFacts(BaseModel):
    """One Kafka broker in `--json`: pid while it runs, address after its first start."""

    node_id: int
    address: str | None
    pid: int | None
    log: str


class DatabaseFacts(BaseModel):
    """One database server in `--json`: pid while it runs, port after its first start."""

    shard: str
    flavor: Flavor
    host: str
    port: int | None
    socket: str
    pid: int | None
    server_id: int
    root_user: str
    user: str
    password_file: str
    log: str


class CacheFacts(BaseModel):
    """One cache server in `--json`: pid while it runs, URL after its first start."""

    kind: str
    url: str | None
    pid: int | None
    log: str


class StackFacts(BaseModel):
    """A whole stack as `--json` shows it; `running` only if every server runs."""

    running: bool
    folder: str
    settings: str
    keyspace: str
    bootstrap_servers: str | None
    brokers: list[BrokerFacts]
    databases: list[DatabaseFacts]
    caches: list[CacheFacts] = []


def even_shards(count: int) -> list[str]:
    """Return the names of `count` shards of even key ranges: `-`; `-80`, `80-`; `-40`, `40-80`, ...

    Raises UsageError for a count that is not from 1 to `SHARDS_MAX`.
    """
    if not 1 <= count <= SHARDS_MAX:
        raise UsageError(f"a stack has 1 to {SHARDS_MAX} shards, not {count}")
    bounds = ["", *(f"{256 * i // count:02x}" for i in range(1, count)), ""]
    return [f"{low}-{high}" for low, high in pairwise(bounds)]


def settings_text(
    keyspace: str,
    flavor: Flavor,
    bootstrap_servers: str,
    addresses: Mapping[str, tuple[str, int]],
    targets: Collection[str] = (),
) -> str:
    """Return the `shardstream.toml` of a stack; `addresses` holds (host, port) by shard.

    `targets`: those of the shards that a reshard fills.
    """
    # A JSON string is a TOML basic string.
    quote = json.dumps
    lines = [
        "# Written by `shardstream local up` at each start of this stack.",
        "[kafka]",
        f"bootstrap_servers = {quote(bootstrap_servers)}",
        "",
        "[kafka.client]",
    ]
    for shard, (host, port) in addresses.items():
        kind = "targets" if shard in targets else "shards"
        server = (
            f"host = {quote(host)}, port = {port}, user = {quote(ACCOUNT_USER)}, "
            f"password_file = {quote(PASSWORD_FILE)}"
        )
        lines += [
            "",
            f"[keyspaces.{quote(keyspace)}.{kind}.{quote(shard)}]",
            f"flavor = {quote(flavor.value)}",
            f"servers = [{{ {server} }}]",
        ]
    return "\n".join(lines) + "\n"


STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
# Server ids of the databases; producers choose theirs from far above.
SERVER_ID_FIRST = 101
PASSWORD_BYTES = 16

_SERVERS: dict[Flavor, type[LocalDatabase]] = {
    Flavor.MYSQL: MysqlServer,
    Flavor.MARIADB: MariadbServer,
}

_CACHES: dict[str, type[CacheServer]] = {"redis": RedisServer, "memcached": MemcachedServer}


def flavor_at_hand(report: Report = quiet, *, notice: Report | None = None) -> Flavor:
    """Return MySQL if it is available on this machine, else MariaDB.

    `report` receives the progress of fetching, `notice` (or `report`) the choice and its reason.
    """
    say = notice or report
    try:
        found = find_mysql(report)
    except (UsageError, Halt) as reason:
        say(f"MariaDB, because: {reason}")
        return Flavor.MARIADB
    say(f"MySQL {found.version} from {found.origin}")
    return Flavor.MYSQL


class Stack:
    """The servers of one folder. As a context manager it starts them and reliably stops them."""

    def __init__(
        self,
        folder: Path,
        shape: StackShape,
        *,
        die_with_parent: bool = False,
        extra_args: Sequence[str] = (),
        report: Report = quiet,
    ) -> None:
        """Use an empty folder, or one with a stack of this shape; start nothing yet.

        Cache servers are added to those that a stack has.

        `extra_args` are settings for every database server. Raises UsageError if the folder
        holds a stack of another shape.
        """
        self.folder = folder.resolve()
        held = read_shape(self.folder)
        self.shape = shape = shape if held is None else shape.with_caches_of(held)
        if held is not None and held.with_caches_of(shape) != shape:
            raise UsageError(
                f"{self.folder} holds {held} (keyspace {held.keyspace}), not {shape} (keyspace "
                f"{shape.keyspace}): choose another folder, or stop it and remove this one"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        account = LocalAccount(ACCOUNT_USER, self._kept_password())
        self.databases: dict[str, LocalDatabase] = {
            shard: _SERVERS[shape.flavor](
                self.folder / f"shard_{shard}",
                server_id=SERVER_ID_FIRST + number,
                account=account,
                extra_args=extra_args,
                die_with_parent=die_with_parent,
                report=report,
            )
            for number, shard in enumerate((*even_shards(shape.shards), *shape.targets))
        }
        self.kafka = KafkaCluster(
            self.folder / "kafka",
            brokers=shape.brokers,
            die_with_parent=die_with_parent,
            report=report,
        )
        self.caches: dict[str, CacheServer] = {
            name: _CACHES[name](self.folder / name, die_with_parent=die_with_parent, report=report)
            for name in shape.caches
        }
        if held != shape:
            self._write(STATE_FILE, StackState(shape=shape).model_dump_json(indent=2) + "\n")

    @property
    def settings_path(self) -> Path:
        """The `shardstream.toml` for this stack."""
        return self.folder / SETTINGS_FILE

    @property
    def running(self) -> bool:
        """Whether every server runs."""
        return None not in self._pids()

    @property
    def stopped(self) -> bool:
        """Whether no server runs."""
        return not any(self._pids())

    def start(self) -> None:
        """Start what is not running and wait until everything serves; write the settings file.

        If this call fails or is interrupted, what it started is stopped again. Raises Halt with the
        log of the server that failed, UsageError if a server is not available here.
        """
        idle = [server for server in self._servers() if server.pid is None]
        kafka_idle = [broker for broker in self.kafka.brokers if broker.pid is None]
        try:
            # All are launched before any is waited for, so that they start in parallel.
            for server in idle:
                server.launch()
            if kafka_idle:
                self.kafka.launch()
                self.kafka.finish_start()
            for server in idle:
                server.finish_start()
        except BaseException:
            for server in idle:
                server.kill()
            for broker in kafka_idle:
                broker.kill()
            raise
        addresses = {shard: (server.host, server.port) for shard, server in self.databases.items()}
        text = settings_text(
            self.shape.keyspace,
            self.shape.flavor,
            self.kafka.bootstrap_servers,
            addresses,
            self.shape.targets,
        )
        self._write(SETTINGS_FILE, text)

    def stop(self) -> None:
        """Shut everything down and wait. Raises Halt if a server cannot be stopped."""
        for server in self._servers():
            server.ask_to_stop()
        self.kafka.stop()
        for server in self._servers():
            server.stop()

    def kill(self) -> None:
        """Kill everything and wait."""
        for server in self._servers():
            server.kill()
        self.kafka.kill()

    def facts(self) -> StackFacts:
        """Return what a user needs to connect."""
        return StackFacts(
            running=self.running,
            folder=str(self.folder),
            settings=str(self.settings_path),
            keyspace=self.shape.keyspace,
            bootstrap_servers=self.kafka.bootstrap_servers if self.kafka.has_ports else None,
            brokers=[
                BrokerFacts(
                    node_id=broker.node_id,
                    address=broker.address if self.kafka.has_ports else None,
                    pid=broker.pid,
                    log=str(broker.log_path),
                )
                for broker in self.kafka.brokers
            ],
            databases=[
                DatabaseFacts(
                    shard=shard,
                    flavor=server.flavor,
                    host=server.host,
                    port=server.port if server.has_ports else None,
                    socket=str(server.socket_path),
                    pid=server.pid,
                    server_id=server.server_id,
                    root_user=server.root_user,
                    user=server.user,
                    password_file=str(self.folder / PASSWORD_FILE),
                    log=str(server.log_path),
                )
                for shard, server in self.databases.items()
            ],
            caches=[
                CacheFacts(
                    kind=kind,
                    url=f"{kind}://{server.address}" if server.has_ports else None,
                    pid=server.pid,
                    log=str(server.log_path),
                )
                for kind, server in self.caches.items()
            ],
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _servers(self) -> "list[LocalDatabase | CacheServer]":
        """All servers but the brokers."""
        return [*self.databases.values(), *self.caches.values()]

    def _pids(self) -> list[int | None]:
        return [each.pid for each in (*self._servers(), *self.kafka.brokers)]

    def _kept_password(self) -> str:
        path = self.folder / PASSWORD_FILE
        if not path.exists():
            self._write(PASSWORD_FILE, f"{secrets.token_hex(PASSWORD_BYTES)}\n")
        return path.read_text().strip()

    def _write(self, name: str, text: str) -> None:
        """Write a file atomically, readable by its owner only."""
        handle, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).replace(self.folder / name)


def read_shape(folder: Path) -> StackShape | None:
    """Return the shape of the stack in a folder; None if there is none.

    Raises Halt if its state file cannot be read.
    """
    path = folder / STATE_FILE
    try:
        return StackState.model_validate_json(path.read_text()).shape
    except FileNotFoundError:
        return None
    except ValidationError as fault:
        raise Halt(f"{path} is not a state file of this version: {fault}") from fault


# How late the end of a producer, or of all, may be noticed.
POLL_S = 0.2
# A producer ends within a second of the signal; beyond this it hangs.
STOP_S_MAX = 30.0


def run_producers(settings: Path, keyspace: str, shards: Sequence[str], stop: Event) -> int:
    """Run a producer per shard until `stop` is set or one of them ends; then end all.

    Return 0 after `stop`, else the exit status of the one that ended, which has said why.
    """
    producers: list[subprocess.Popen[bytes]] = []
    try:
        for shard in shards:
            produce = ("produce", keyspace, shard, "--config", str(settings))
            command = with_parent_guard([sys.executable, "-m", "shardstream", *produce])
            # A separate session: Ctrl-C reaches this process alone, which ends them in order.
            producers.append(subprocess.Popen(command, start_new_session=True))
        while not stop.wait(POLL_S):
            for producer in producers:
                if producer.poll() is not None:
                    return producer.returncode if producer.returncode > 0 else 1
        return 0
    finally:
        for producer in producers:
            producer.terminate()
        for producer in producers:
            wait_or_kill(producer, STOP_S_MAX)
