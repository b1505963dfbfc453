"""How the shop writes: each transaction goes to the shard that is in charge of its customer.

While a shard is split it refuses writes. Then the topology is looked at again until another shard
is in charge or this one lets in again, and the transaction is done there, once.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from databases.connection import is_transient
from event_token.errors import Halt, UsageError
from shardstream.demo.shop import Connect, keyspace_id
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ShardEntry, read_topology

# A switch takes a second or two, and gives up after a minute.
REFUSED_S_MAX: Final = 180.0
# Between two tries; several writers that wait share one look at the topology.
REFUSED_PAUSE_S: Final = 0.05

Statement = tuple[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction on rows of customers of one shard.

    `statements`: each with the arguments of its executions. `done`: a condition with its arguments
    that holds exactly when the transaction was committed: a lost COMMIT says neither yes nor no.
    """

    customer_id: int
    statements: tuple[Statement, ...]
    done: tuple[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a transaction. `refusals`: how many times it was refused before."""

    shard: str
    rows: int
    refusals: int


class ShardDirectory:
    """Which shard is in charge of a customer, by the topology as it was last seen."""

    def __init__(self, keyspace: str, kafka: ClientConfig) -> None:
        """Look at the topology; UsageError when there is none."""
        self._keyspace = keyspace
        self._kafka = kafka
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._serving: tuple[ShardEntry, ...] = ()
        self.look_again()

    def shard_of(self, customer_id: int) -> str:
        """The shard that takes writes for the customer."""
        where = keyspace_id(customer_id)
        [shard] = [entry.name for entry in self._serving if entry.key_range.contains(where)]
        return shard

    @property
    def serving(self) -> tuple[str, ...]:
        """The shards that take writes."""
        return tuple(entry.name for entry in self._serving)

    def look_again(self) -> None:
        """Read the topology, unless somebody just has."""
        asked_s = time.monotonic()
        with self._lock:
            if self._looked_s >= asked_s:
                return
            topology = read_topology(self._kafka, self._keyspace)
            if topology is None:
                raise UsageError(f"keyspace {self._keyspace} has no topology")
            self._serving = topology.serving()
            self._looked_s = time.monotonic()


class ShopSession:
    """One writer's connections, one a shard, opened when they are needed. For one thread."""

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        """Nothing is opened yet."""
        self._directory = directory
        self._connects = connects
        self._connections: dict[str, Any] = {}

    def commit(self, change: Change) -> Committed:
        """Do the transaction once, where it belongs now. Halt when it is refused for too long."""
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
                if not is_transient(error):
                    raise
                refusals += 1
                if time.monotonic() - began_s > REFUSED_S_MAX:
                    raise Halt(
                        f"shard {shard} has refused a write for {REFUSED_S_MAX:g} s: {error}"
                    ) from error
                time.sleep(REFUSED_PAUSE_S)
                self._directory.look_again()
            else:
                return Committed(shard, rows, refusals)

    def _connection(self, shard: str) -> Any:
        if shard not in self._connections:
            self._connections[shard] = self._connects[shard]()
        return self._connections[shard]

    def _forget(self, shard: str) -> None:
        connection = self._connections.pop(shard, None)
        if connection is not None and connection.open:
            connection.close()

    def close(self) -> None:
        """Leave the servers."""
        for shard in list(self._connections):
            self._forget(shard)


def _execute(connection: Any, change: Change) -> int:
    """Run the statements; return how many rows they changed."""
    with connection.cursor() as cursor:
        return sum(cursor.executemany(*statement) or 0 for statement in change.statements)


def _is_done(connection: Any, change: Change) -> bool:
    condition, arguments = change.done
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {condition}", arguments)
        [(is_done,)] = cursor.fetchall()
    connection.rollback()
    return bool(is_done)
