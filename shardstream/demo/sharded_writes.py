"""The shop's writes: each transaction goes to the shard that serves its customer.

A shard that is being switched refuses writes. The topology is then read again until another shard
serves the customer or this one accepts writes again, and the transaction is applied there, once.
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
# Between two attempts; waiting writers share one read of the topology.
REFUSED_PAUSE_S: Final = 0.05

Statement = tuple[str, Sequence[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Change:
    """A transaction on rows of customers of one shard.

    `statements`: each with the arguments of its executions. `done`: a condition with its arguments
    that is true exactly if the transaction was committed, for when the COMMIT got no answer.
    """

    customer_id: int
    statements: tuple[Statement, ...]
    done: tuple[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Committed:
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
            topology = read_topology(self._kafka, self._keyspace)
            if topology is None:
                raise UsageError(f"keyspace {self._keyspace} has no topology")
            self._serving = topology.serving()
            self._looked_s = time.monotonic()


class ShopSession:
    """One writer's connections, one per shard, opened on first use. For one thread."""

    def __init__(self, directory: ShardDirectory, connects: Mapping[str, Connect]) -> None:
        """Open nothing yet."""
        self._directory = directory
        self._connects = connects
        self._connections: dict[str, Any] = {}

    def commit(self, change: Change) -> Committed:
        """Apply the transaction once, on its current shard. Halt if it is refused for too long."""
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
        """Close all connections."""
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
