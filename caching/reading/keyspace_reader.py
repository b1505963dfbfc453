"""Reads a keyspace: a row on the shard that serves it, or all shards, also across reshards.

The topology names the shards. That a shard still serves is proven by the journal of the server that
answers, in the transaction of the read: the topology may be known late, or not at all while Kafka
is away. So a source is left at its END, and a target is read from its BEGIN on.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, Self

from caching.errors import CacheFindings, NotServing, Stale, TooOld
from caching.reading.connections import Connect
from caching.reading.fresh_reader import FreshReader
from caching.reading.reader import FreshRows, ServerRole
from credentials.per_process import PerProcess
from databases.errors import ServerLost, ServerRefused
from event_token import ClockUncertainty, EventToken, Flavor, KeyRange, UsageError
from event_token.errors import Retry, ShardstreamError
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import has_marks, switched
from topics.keyspace.topology import (
    WATCH_INTERVAL_S,
    Topology,
    TopologyLook,
    read_topology,
    require_topology,
)
from topics.keyspace.vindexes import vindex_named

# How long a read waits for the end of a switch: one stops writes for about a second.
SWITCH_S_MAX: Final = 10.0
# Between two attempts meanwhile; each asks the servers, and Kafka.
PAUSE_S: Final = 0.1
# How often a read follows other shards: a reshard takes longer than a read, so one is usual.
MOVES_MAX: Final = 3
# A read waits this long for brokers; without them it goes by the topology that it knows.
BROKERS_S_MAX: Final = 3.0
# The first read after such a pause waits for a look: nothing else has followed the topology since.
IDLE_S_MAX: Final = 10.0
# Shards that one scatter reads at a time.
THREADS_MAX: Final = 16

# What a read of a shard may raise because others serve now: its servers may be gone, or locked.
_MAY_HAVE_MOVED: Final = (NotServing, Stale, TooOld, ServerLost, ServerRefused)

# What a read has to hold, as `FreshReader.execute` takes it.
AtLeast = EventToken | Iterable[EventToken] | datetime | None


@dataclass(frozen=True, slots=True)
class KeyspaceRows:
    """The rows of all shards, in the order of their key ranges, and what all of them hold.

    `tokens`: by shard, that of its rows, None if it is unknown. `complete_to`: the rows of every
    shard hold all that was committed up to this time. `age_ms`: they hold all that was committed
    this long before the read began. Both include the clocks' uncertainty, and are None if nothing
    proves that of a shard.
    """

    rows: list[Any]
    tokens: Mapping[str, EventToken | None]
    complete_to: datetime | None
    age_ms: float | None


class ServingShards:
    """The shards that serve in one topology, and which of them has a row. Pure."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.names = topology.shards_for(KeyRange.parse("-"))
        # Those that a reshard has filled; one by other tools has left no BEGIN.
        self.filled = frozenset(
            target
            for reshard in switched(topology)
            if has_marks(reshard)
            for target in reshard.targets
        )
        self._ranges = [(each.name, each.key_range) for each in topology.serving()]
        self._vindexes = {f"{e.database}.{e.table}": e.vindex for e in topology.vindexes}

    def of_row(self, on: Any, table: str | None) -> str:
        """Return the shard with that value of the sharding column; UsageError if it is not clear.

        `table`: database.table, needed where tables of the keyspace have different vindexes.
        """
        if len(self.names) == 1 and (on is None or not self._vindexes):
            return self.names[0]
        found = {vindex for name, vindex in self._vindexes.items() if table in {None, name}}
        if len(found) != 1:
            raise UsageError(
                f"keyspace {self.topology.keyspace}: {table or 'its tables'} have "
                f"{' and '.join(sorted(found)) or 'no vindex'}, so the shard of a row is not "
                f"clear: pass table=, one of {', '.join(sorted(self._vindexes)) or '(none)'}"
            )
        keyspace_id = vindex_named(found.pop()).keyspace_id(on)
        return next(name for name, ids in self._ranges if ids.contains(keyspace_id))


def merged(found: Mapping[str, FreshRows]) -> KeyspaceRows:
    """Merge the rows of each shard; of all is proven what is proven of the oldest. Pure."""
    times = [each.complete_to for each in found.values() if each.complete_to is not None]
    ages_ms = [each.age_ms for each in found.values() if each.age_ms is not None]
    return KeyspaceRows(
        [row for each in found.values() for row in each.rows],
        {shard: each.token for shard, each in found.items()},
        min(times) if len(times) == len(found) else None,
        max(ages_ms) if len(ages_ms) == len(found) else None,
    )


class KeyspaceReader:
    """Reads the shards that serve a keyspace, and follows reshards. Threads may share a reader.

    `kafka`: where the topology is. `servers`: for a shard's name, the functions that connect to its
    servers, as `FreshReader` takes them; it has to know the targets of a reshard before the switch.
    The account needs SELECT on `_shardstream.*`. `flavor` and `clock`: see `FreshReader`.
    """

    def __init__(
        self,
        kafka: ClientConfig,
        keyspace: str,
        servers: Callable[[str], Sequence[Connect]],
        *,
        flavor: Flavor | str,
        clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen
    ) -> None:
        """Connect with the first read."""
        self.keyspace = keyspace
        self.flavor = Flavor(flavor)
        self.clock = clock
        self._servers = servers
        self._kafka = kafka.answering_within(BROKERS_S_MAX)
        # Looks that nobody waits for, and those that a read waits for, one at a time.
        self._looks = TopologyLook(self._kafka, keyspace, WATCH_INTERVAL_S)
        self._looking = PerProcess(Lock)
        self._looked_s = 0.0
        self._known_s = 0.0
        self._lock = PerProcess(Lock)
        self._serving: ServingShards | None = None
        # By shard and whether it was a target: who asks before its switch is known needs no BEGIN.
        self._readers: dict[tuple[str, bool], FreshReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections; a later read opens new ones."""
        with self._lock.here():
            for reader in self._readers.values():
                reader.close()

    def shard_of(self, on: Any, *, table: str | None = None) -> str:
        """Return the shard of a row in the topology as last read. Arguments as of `execute`.

        For writes, which a source refuses from its END on: then ask again.
        """
        return self._known().of_row(on, table)

    def committed(self, connection: Any, shard: str) -> EventToken:
        """Return the token of the commit just made on a shard, as `FreshReader.committed` does."""
        # A look at the topology would come between the commit and its time.
        return self._reader(shard, self._serving or self._known()).committed(connection)

    def check(self) -> CacheFindings:
        """Ask every server of the shards that serve what a preflight has to know."""
        serving, found = self._known(), CacheFindings()
        for shard in serving.names:
            found.add(self._reader(shard, serving).check())
        return found

    def execute(
        self,
        sql: str,
        args: Any = (),
        *,
        on: Any,
        table: str | None = None,
        at_least: AtLeast = None,
        max_age_ms: int | None = None,
        wait_s: float = 0.05,
        server: ServerRole = "any",
        prefer: Mapping[str, str] = MappingProxyType({}),
    ) -> FreshRows:
        """Read on the shard that serves a row, as `FreshReader.execute` does.

        `on`: the value of the sharding column, as a vindex takes it. `table`: database.table,
        needed where tables of the keyspace have different vindexes. `prefer`: by shard, the server
        that is asked before the others of its role. A read that comes upon the END
        of its shard waits for the new ones: NotServing if none serve after 10 s. UsageError where
        the shard is not clear, its servers are not known, or do not show whether it serves.
        """
        query = _query(sql, args, at_least, max_age_ms, wait_s, server, prefer)
        [found] = self._read(lambda serving: (serving.of_row(on, table),), query).values()
        return found

    def scatter(
        self,
        sql: str,
        args: Any = (),
        *,
        at_least: AtLeast = None,
        max_age_ms: int | None = None,
        wait_s: float = 0.05,
        server: ServerRole = "any",
    ) -> KeyspaceRows:
        """Read on all shards of one topology, up to 16 at a time; a reshard meanwhile repeats it.

        ORDER BY, LIMIT and aggregates are those of each shard. Every shard has to hold what is
        wanted: options and errors as of `execute`.
        """
        query = _query(sql, args, at_least, max_age_ms, wait_s, server, {})
        return merged(self._read(lambda serving: serving.names, query))

    def _read(
        self,
        route: Callable[[ServingShards], tuple[str, ...]],
        query: Callable[[FreshReader], FreshRows],
    ) -> Mapping[str, FreshRows]:
        """Read shards of one topology; again if others serve by the time that it is done."""
        moves, ended_s = 0, None
        serving = self._known()
        while True:
            shards = route(serving)
            fault: ShardstreamError | None = None
            try:
                found = self._read_once(serving, shards, query)
            except _MAY_HAVE_MOVED as error:
                fault = error
                self._look()
            serving = self._known()
            if route(serving) != shards:
                moves += 1
                if moves > MOVES_MAX:
                    raise NotServing(
                        f"{self.keyspace}: its shards changed {moves} times while they were read"
                    ) from fault
                continue
            if fault is None:
                return found
            if not isinstance(fault, NotServing):
                raise fault
            ended_s = ended_s or time.monotonic()
            if time.monotonic() - ended_s >= SWITCH_S_MAX:
                raise NotServing(
                    f"{fault}, but the topology names no other after {SWITCH_S_MAX:g} s. See that "
                    f"Kafka answers, and run `shardstream reshard switch` or `cancel` again"
                ) from fault
            time.sleep(PAUSE_S)

    def _read_once(
        self,
        serving: ServingShards,
        shards: tuple[str, ...],
        query: Callable[[FreshReader], FreshRows],
    ) -> dict[str, FreshRows]:
        def read(shard: str) -> FreshRows:
            return query(self._reader(shard, serving))

        if len(shards) == 1:
            return {shards[0]: read(shards[0])}
        with ThreadPoolExecutor(min(len(shards), THREADS_MAX)) as pool:
            return dict(zip(shards, pool.map(read, shards), strict=True))

    def _known(self) -> ServingShards:
        """Return what the last look at the topology has found, and begin the next if it is due."""
        now_s = time.monotonic()
        is_idle, self._known_s = now_s - self._known_s > IDLE_S_MAX, now_s
        waits = self._serving is None or is_idle
        if waits:
            self._look()
        # Without brokers the known topology stays: what is read is proven by the servers.
        with self._lock.here(), suppress(Retry):
            found = self._looks.take()
            if not waits:  # else it is of before the pause
                self._adopt(found)
        assert self._serving is not None  # noqa: S101 - the first look raises if it finds none
        return self._serving

    def _look(self) -> None:
        """Read the topology, unless a look has begun since the call.

        Without brokers it raises only if none is known: a read's own fault says more.
        """
        asked_s = time.monotonic()
        with self._looking.here():
            if self._serving is not None and self._looked_s >= asked_s:
                return
            self._looked_s = time.monotonic()
            try:
                found = require_topology(read_topology(self._kafka, self.keyspace), self.keyspace)
            except Retry:
                if self._serving is None:
                    raise
                return
        with self._lock.here():
            self._adopt(found)

    def _adopt(self, topology: Topology | None) -> None:
        """Go by a topology that was read, unless a later one is known."""
        known = self._serving
        if topology is None or (
            known and (topology == known.topology or topology.epoch < known.topology.epoch)
        ):
            return
        self._serving = ServingShards(topology)
        for key in list(self._readers):
            if key[0] not in self._serving.names:
                self._readers.pop(key).close()

    def _reader(self, shard: str, serving: ServingShards) -> FreshReader:
        key = shard, shard in serving.filled
        with self._lock.here():
            if key not in self._readers:
                try:
                    servers = self._servers(shard)
                except LookupError as error:
                    raise UsageError(
                        f"{self.keyspace}.{shard}: `servers` does not know this shard: it has to "
                        f"know the targets of a reshard before the switch"
                    ) from error
                self._readers[key] = FreshReader(
                    self.keyspace,
                    shard,
                    servers,
                    flavor=self.flavor,
                    clock=self.clock,
                    was_target=key[1],
                )
            return self._readers[key]


def _query(
    sql: str,
    args: Any,
    at_least: AtLeast,
    max_age_ms: int | None,
    wait_s: float,
    server: ServerRole,
    prefer: Mapping[str, str],
) -> Callable[[FreshReader], FreshRows]:
    """Return the read of a shard; writes that it must hold concern those that overlap theirs."""
    if isinstance(at_least, EventToken):
        at_least = (at_least,)
    elif at_least is not None and not isinstance(at_least, datetime):
        at_least = tuple(at_least)
    return lambda reader: reader.execute(
        sql,
        args,
        at_least=at_least,
        max_age_ms=max_age_ms,
        wait_s=wait_s,
        server=server,
        prefer=prefer.get(reader.shard),
    )
