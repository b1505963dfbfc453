"""A whole stack in one folder: one database server per shard, and Kafka."""

import os
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from event_token import Flavor, Halt, UsageError
from shardstream.local.cache_server import CacheServer, MemcachedServer, RedisServer
from shardstream.local.database_server import (
    Account,
    DatabaseServer,
    MariadbServer,
    MysqlServer,
)
from shardstream.local.fetching.cache import Report, quiet
from shardstream.local.fetching.mysql_binaries import find_mysql
from shardstream.local.kafka_cluster import KafkaCluster
from shardstream.local.shape import (
    ACCOUNT_USER,
    PASSWORD_FILE,
    SETTINGS_FILE,
    BrokerFacts,
    CacheFacts,
    DatabaseFacts,
    StackFacts,
    StackShape,
    StackState,
    even_shards,
    settings_text,
)

STATE_FILE = "stack.json"
LOCK_FILE = "stack.lock"
# Server ids of the databases; producers choose theirs from far above.
SERVER_ID_FIRST = 101
PASSWORD_BYTES = 16

_SERVERS: dict[Flavor, type[DatabaseServer]] = {
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
            message = (
                f"{self.folder} holds {held} (keyspace {held.keyspace}), not {shape} (keyspace "
                f"{shape.keyspace}): choose another folder, or stop it and remove this one"
            )
            raise UsageError(message)
        self.folder.mkdir(parents=True, exist_ok=True)
        account = Account(ACCOUNT_USER, self._kept_password())
        self.databases: dict[str, DatabaseServer] = {
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
                    port=server.port if server.has_port else None,
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
                    url=f"{kind}://{server.address}" if server.has_port else None,
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

    def _servers(self) -> "list[DatabaseServer | CacheServer]":
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
        message = f"{path} is not a state file of this version: {fault}"
        raise Halt(message) from fault
