"""The shop: its tables and accounts, how its rows are sharded, and its writes.

Each transaction goes to the shard that serves its customer. A shard that is being switched refuses
writes. The topology is then read again until another shard serves the customer or this one accepts
writes again, and the transaction is applied there, once.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import pymysql

from databases.connection import is_transient
from event_token.errors import Halt, Retry
from resharding.servers import NEEDED_TO_SWITCH
from shardstream.local.database_server import LocalDatabase
from shardstream.local.stack import PASSWORD_FILE
from topics.errors import NoBrokerAnswers
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ShardEntry, read_topology, require_topology
from topics.keyspace.vindexes import vindex_named

DATABASE: Final = "shop"
# All rows of a customer are on the customer's shard.
SHARDING_COLUMNS: Final = {
    "customers": "id",
    "orders": "customer_id",
    "order_items": "customer_id",
    "coupons": "customer_id",
}
VINDEX: Final = "hash"
# The shard that is split while the shop is open.
SOURCE: Final = "80-"
TARGETS: Final = ("80-c0", "c0-")
RESHARD_ID: Final = "split"
APPLICATION: Final = "shop"
RESHARDER: Final = "resharder"
IN_UTC: Final = "SET time_zone = '+00:00'"

Connect = Callable[[], Any]


def shop_tables() -> str:
    """Return the script that creates the tables of SHARDING_COLUMNS."""
    return files("shardstream.demo").joinpath("shop.sql").read_text()


def keyspace_id(customer_id: int) -> bytes:
    """Return a customer's keyspace id, by the vindex that the settings declare for all tables."""
    return vindex_named(VINDEX).keyspace_id(customer_id)


def connect_as_root(server: LocalDatabase) -> Connect:
    """Return a function that connects as root, in UTC."""
    return lambda: server.connect(init_command=IN_UTC, autocommit=False)


def connect_as(server: LocalDatabase, user: str, *, autocommit: bool = False) -> Connect:
    """Return a function that connects to the shop's database with one of the shop's accounts."""
    return lambda: server.connect(
        user=user,
        password=server.password,
        database=DATABASE,
        init_command=IN_UTC,
        autocommit=autocommit,
    )


def make_accounts(server: LocalDatabase, *, is_target: bool) -> None:
    """Create the shop's account, locked on targets, and the one that reshards."""
    lock = "LOCK" if is_target else "UNLOCK"
    grants = ", ".join(NEEDED_TO_SWITCH[server.flavor])
    with server.connect() as connection, connection.cursor() as cursor:
        # Outside the binlog, as the stack's own account.
        cursor.execute("SET SESSION sql_log_bin = 0")
        for user in (APPLICATION, RESHARDER):
            cursor.execute(f"CREATE USER '{user}'@'%%' IDENTIFIED BY %s", (server.password,))
        cursor.execute(f"ALTER USER '{APPLICATION}'@'%' ACCOUNT {lock}")
        cursor.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {DATABASE}.* TO '{APPLICATION}'@'%'"
        )
        cursor.execute(f"GRANT {grants} ON *.* TO '{RESHARDER}'@'%'")


def create_tables(server: LocalDatabase, script: str) -> None:
    """Create the shop's database on one shard, and its tables by a script."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {DATABASE}")
        for statement in script.split(";\n"):
            if statement.strip():
                cursor.execute(statement)


def shop_settings(
    keyspace: str, sharding_columns: Mapping[str, str], heartbeat_rows: str = "replicas"
) -> str:
    """Return the shop's part of the settings file: vindexes, and the account that reshards."""
    quote = json.dumps
    # The demo's servers do not wait for the disk. Each commit costs the broker some eight requests,
    # and two small cores run everything else as well.
    lines = ["", "[producer]", "accept_loss_at_server_crash = true", "commit_ms = 200"]
    lines.append(f"heartbeat_rows = {quote(heartbeat_rows)}")
    for table, column in sharding_columns.items():
        lines += [
            "",
            f"[[keyspaces.{quote(keyspace)}.vindexes]]",
            f"database = {quote(DATABASE)}",
            f"table = {quote(table)}",
            f"column = {quote(column)}",
            f"vindex = {quote(VINDEX)}",
        ]
    lines += [
        "",
        f"[keyspaces.{quote(keyspace)}.reshard]",
        f"user = {quote(RESHARDER)}",
        f"password_file = {quote(PASSWORD_FILE)}",
        f"application_accounts = [{quote(APPLICATION + '@%')}]",
    ]
    return "\n".join(lines) + "\n"


# A switch takes a second or two, and gives up after a minute.
REFUSED_S_MAX: Final = 180.0
# Between two attempts; waiting writers share one read of the topology.
REFUSED_PAUSE_S: Final = 0.05

Statement = tuple[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class ShopChange:
    """A transaction on rows of customers of one shard.

    `statements`: each with the arguments of its executions. `done`: a condition with its arguments
    that is true exactly if the transaction was committed, for when the COMMIT got no answer.
    """

    customer_id: int
    statements: tuple[Statement, ...]
    done: tuple[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class CommittedChange:
    """A committed transaction. `refusals`: how often it was refused before."""

    shard: str
    rows: int
    refusals: int


class ShardDirectory:
    """Which shard serves a customer, according to the topology as last read."""

    def __init__(self, keyspace: str, kafka: ClientConfig) -> None:
        """Read the topology; UsageError if there is none."""
        self._keyspace = keyspace
        self._kafka = kafka
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._serving: tuple[ShardEntry, ...] = ()
        self.look_again()

    def shard_of(self, customer_id: int) -> str:
        """Return the shard that serves the customer."""
        where = keyspace_id(customer_id)
        [shard] = [entry.name for entry in self._serving if entry.key_range.contains(where)]
        return shard

    @property
    def serving(self) -> tuple[str, ...]:
        """Return the serving shards."""
        return tuple(entry.name for entry in self._serving)

    @property
    def entries(self) -> tuple[ShardEntry, ...]:
        """Return the serving shards with their key ranges."""
        return self._serving

    def look_again(self) -> None:
        """Read the topology, unless another thread just has."""
        asked_s = time.monotonic()
        with self._lock:
            if self._looked_s >= asked_s:
                return
            topology = require_topology(read_topology(self._kafka, self._keyspace), self._keyspace)
            self._serving = topology.serving()
            self._looked_s = time.monotonic()


class ShopSession:
    """One writer's connections, one per shard, opened on first use. For one thread."""

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        """Open nothing yet."""
        self._directory = directory
        self._connects = connects
        self._connections: dict[str, Any] = {}

    def commit(self, change: ShopChange) -> CommittedChange:
        """Apply the transaction once, on its current shard. Halt if it is refused for too long.

        A transaction in doubt is looked up until its shard answers, whatever the errors are.
        """
        began_s = time.monotonic()
        refusals = rows = 0
        in_doubt = False
        while True:
            shard = self._directory.shard_of(change.customer_id)
            try:
                connection = self._connection(shard)
                if not (in_doubt and _is_done(connection, change)):
                    in_doubt = False
                    rows = _execute(connection, change)
                    in_doubt = True
                    connection.commit()
            except pymysql.err.MySQLError as error:
                self._forget(shard)
                if not (in_doubt or is_transient(error)):
                    raise
                refusals += 1
                if time.monotonic() - began_s > REFUSED_S_MAX:
                    raise Halt(
                        f"shard {shard} has refused a write for {REFUSED_S_MAX:g} s: {error}"
                    ) from error
                time.sleep(REFUSED_PAUSE_S)
                with suppress(
                    Retry, NoBrokerAnswers
                ):  # Kafka is away too: what was read last has to do
                    self._directory.look_again()
            else:
                return CommittedChange(shard, rows, refusals)

    def _connection(self, shard: str) -> Any:
        if shard not in self._connections:
            self._connections[shard] = self._connects[shard]()
        return self._connections[shard]

    def _forget(self, shard: str) -> None:
        connection = self._connections.pop(shard, None)
        if connection is not None and connection.open:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for shard in list(self._connections):
            self._forget(shard)


def _execute(connection: Any, change: ShopChange) -> int:
    """Run the statements; return how many rows they changed."""
    with connection.cursor() as cursor:
        return sum(cursor.executemany(*statement) or 0 for statement in change.statements)


def _is_done(connection: Any, change: ShopChange) -> bool:
    condition, arguments = change.done
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {condition}", arguments)
        [(is_done,)] = cursor.fetchall()
    connection.rollback()
    return bool(is_done)


class BackgroundWork:
    """Threads that run until they are stopped; the first error of one is kept for `check`."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self._threads: list[threading.Thread] = []

    def _prepare(self, work: Iterable[Callable[[], None]]) -> None:
        """Make a thread of each, which `start` starts; they end when `_stop` is set."""
        self._threads = [
            threading.Thread(target=self._guarded, args=(part,), daemon=True) for part in work
        ]

    def start(self) -> None:
        """Start all threads."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the first error of a thread."""
        if self._errors:
            raise self._errors[0]

    def ask_to_stop(self) -> None:
        """Ask all threads to end after their current step, without waiting."""
        self._stop.set()

    def wait(self) -> None:
        """Wait for all threads that were started."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def stop(self) -> None:
        """Stop all threads and wait for them; raise the first error of one."""
        self.ask_to_stop()
        self.wait()
        self.check()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - kept for check(), which raises it
            self._errors.append(error)


class Pace:
    """Limits a loop to a rate; time lost to a refusal is not made up for."""

    def __init__(self, per_s: float, stop: threading.Event) -> None:
        self._interval_s = 1 / per_s
        self._stop = stop
        self._due_s = time.monotonic()

    def wait(self) -> bool:
        """Wait until the next turn; False if the loop was stopped."""
        now_s = time.monotonic()
        self._due_s = max(self._due_s + self._interval_s, now_s - 1)
        return not self._stop.wait(max(0.0, self._due_s - now_s))
