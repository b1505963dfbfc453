"""Reads one shard, from replicas and its primary, and says how fresh what it read is."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from caching.errors import Stale
from caching.findings import Findings
from caching.protocol.freshness import holds
from caching.reading.checks import Asked, check_servers
from caching.reading.connections import HIDDEN_S, Connect, OpenConnection, Server, error_code
from caching.reading.shard_time import time_columns
from caching.reading.snapshots import Opening, Snapshots, snapshots_of, transaction
from databases.errors import ServerLost
from event_token import (
    EventToken,
    Flavor,
    KeyRange,
    MariadbGtidSet,
    Order,
    ShardName,
    UsageError,
    compare,
)

ServerRole = Literal["any", "replica", "primary"]

# How often a read is begun again: the snapshot's position cannot be told, or a DDL statement came
# between snapshot and read.
REPEATS_MAX: Final = 1
# An idle connection may have died with its server; a new one that dies, too, says more.
CONNECTIONS_MAX: Final = 2
# Between two looks where a server cannot be told what to wait for.
POLL_S: Final = 0.005

_FRESHER: Final = {
    Order.NEWER: True,
    Order.EQUAL: True,
    Order.OLDER: False,
    Order.UNKNOWN: None,
}
# How long a reader's first write may wait for a replica to have it; then the primary is asked.
LOOK_S_MAX: Final = 0.05
# The definition of a table is newer than the snapshot: of the read's, or of the shard's times.
_DEFINITION_CHANGED: Final = 1412


@dataclass(frozen=True, slots=True)
class FreshRows:
    """Rows as the driver returns them, and what they are proven to hold.

    `token`: every change up to it is in the rows; None if it was not asked for or cannot be told.
    `fresher`: whether they hold at least what the compared token does; None if that is unknown.
    `server`: the host name and port of the server that answered, as it gives them, `is_primary` its
    role. `has_waited`: a server was given time to catch up.
    """

    rows: list[Any]
    token: EventToken | None
    fresher: bool | None
    server: str
    is_primary: bool = False
    has_waited: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What to read, and what the answer must hold."""

    sql: str
    args: Any
    at_least: tuple[EventToken, ...]
    wait_s: float
    role: ServerRole
    prefer: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows, the transaction that they were read in, and its token."""

    rows: list[Any]
    opening: Opening
    token: EventToken | None
    has_waited: bool = False


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a server did not answer: it lacks `wanted`, or has another role (None)."""

    opening: Opening
    token: EventToken | None
    wanted: EventToken | None
    has_waited: bool = False


class FreshReader:
    """Reads one shard. Threads may share a reader; each read has a connection of its own.

    `servers`: functions that return a DBAPI connection, replicas first, then the primary. Roles are
    asked of the servers at each read. `flavor`: "mysql" or "mariadb".
    """

    def __init__(
        self, keyspace: str, shard: str, servers: Sequence[Connect], *, flavor: Flavor | str
    ) -> None:
        """Connect with the first read. UsageError on a shard name or servers that cannot be."""
        self._range = ShardName.parse(shard).key_range
        if not servers:
            raise UsageError(f"{keyspace}.{shard}: a reader needs at least one server")
        self.keyspace = keyspace
        self.shard = shard
        self.flavor = Flavor(flavor)
        self._servers = [Server(connect) for connect in servers]
        self._snapshots: Snapshots = snapshots_of(self.flavor)
        self._times = time_columns(keyspace, shard)
        self._newest = MariadbGtidSet()
        self._begun: int | None = None
        self._begun_due_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections; a later read opens new ones."""
        for server in self._servers:
            server.close()

    def execute(
        self,
        sql: str,
        args: Any = (),
        *,
        include_event_token: bool = True,
        compare_event_token: EventToken | str | None = None,
        at_least: EventToken | Iterable[EventToken] | None = None,
        wait_s: float = 0.05,
        server: ServerRole = "any",
        prefer: str | None = None,
    ) -> FreshRows:
        """Read in a read-only transaction of its own; `args` are the driver's.

        `at_least`: a change, or the writes of a session, of which those count that overlap the
        shard's key range. A server that lacks one gets `wait_s` seconds, then the next one is
        asked, and the primary last. `prefer`: the server, as `FreshRows` names it, that is asked
        before the others of its role. Raises Stale if that lacks it, too, ServerLost if no server
        answers, ServerRefused, UsageError, and the driver's own errors for the statement.
        """
        answer = self.answer(Request(sql, args, self._wanted(at_least), wait_s, server, prefer))
        fresher = None
        if compare_event_token is not None and answer.token is not None:
            other = compare_event_token
            other = EventToken.from_string(other) if isinstance(other, str) else other
            fresher = _FRESHER[compare(answer.token, other)]
        token = answer.token if include_event_token else None
        return FreshRows(
            answer.rows,
            token,
            fresher,
            answer.opening.server,
            answer.opening.is_primary,
            answer.has_waited,
        )

    def check(self) -> Findings:
        """Ask every server what a preflight has to know: settings, grants, roles."""
        asked = Asked(self.keyspace, self.shard, self.flavor, self._snapshots, self._times)
        return check_servers(asked, self._servers)

    def committed(self, connection: Any) -> EventToken:
        """The token of the commit that this connection has just made, for `at_least`.

        On MySQL it holds all that the server has executed by now. Its time is that of the server's
        clock; without SELECT on `_shardstream.*` there is none. UsageError within a transaction,
        and on MariaDB if the connection has written nothing.
        """
        opened = OpenConnection(connection)
        position, clock_us = self._snapshots.last_commit(opened)
        token = EventToken(None, self.shard, position)
        begun_us = self._begun_us(token)
        if begun_us is None:
            return token
        # Whatever the clocks: no read of a source of this shard's reshard is as late.
        return replace(token, timestamp_us=max(clock_us, begun_us))

    def _begun_us(self, written: EventToken) -> int | None:
        """When the shard's BEGIN was, 0 if it was never a target; None if that is not shown.

        It never changes for a shard that takes writes.
        """
        now_s = time.monotonic()
        if self._begun is None and now_s >= self._begun_due_s:
            self._begun_due_s = now_s + HIDDEN_S
            with suppress(Stale, ServerLost):
                look = Request("SELECT 1", (), (written,), LOOK_S_MAX, "any")
                shown = self.answer(look).opening.time
                self._begun = None if shown is None else shown.begun_us
        return self._begun

    def answer(self, request: Request) -> Answer:
        """Ask one server after the other. Raises what `execute` raises."""
        lacks: list[Lack] = []
        faults: list[ServerLost] = []
        # Roles as they were last: a promoted replica does not get all the reads.
        last = request.role != "primary"
        servers = sorted(
            self._servers, key=lambda each: (each.was_primary is last, each.name != request.prefer)
        )
        for server in servers:
            try:
                found = self._ask(server, request)
            except ServerLost as fault:
                faults.append(fault)
                continue
            if isinstance(found, Answer):
                waited = found.has_waited or any(lack.has_waited for lack in lacks)
                return replace(found, has_waited=waited)
            lacks.append(found)
        raise self._no_answer(request, lacks, faults)

    def _wanted(self, at_least: EventToken | Iterable[EventToken] | None) -> tuple[EventToken, ...]:
        if at_least is None:
            return ()
        if isinstance(at_least, EventToken):
            return (at_least,)
        return tuple(token for token in at_least if self._range.overlaps(_range(token)))

    def _ask(self, server: Server, request: Request) -> Answer | Lack:
        for _ in range(CONNECTIONS_MAX - 1):
            with suppress(ServerLost), server.connection() as opened:
                return self._read(server, opened, request)
            server.close()  # The others have died as well.
        with server.connection() as opened:
            return self._read(server, opened, request)

    def _read(self, server: Server, opened: OpenConnection, request: Request) -> Answer | Lack:
        deadline_s = time.monotonic() + request.wait_s
        repeats, has_waited = 0, False
        while True:
            is_last = repeats >= REPEATS_MAX
            try:
                found = self._read_once(opened, request, is_last=is_last)
            except Exception as error:
                if error_code(error) != _DEFINITION_CHANGED or is_last:
                    raise
                found = None
            if found is None:
                repeats += 1
                continue
            server.name, server.was_primary = found.opening.server, found.opening.is_primary
            left_s = deadline_s - time.monotonic()
            if isinstance(found, Answer) or found.wanted is None or left_s <= 0:
                return replace(found, has_waited=has_waited)
            self._wait(opened, found, left_s)
            has_waited = True

    def _read_once(
        self, opened: OpenConnection, request: Request, *, is_last: bool
    ) -> Answer | Lack | None:
        """One transaction. None if the read has to be begun again, unless this `is_last`."""
        opening = self._snapshots.begin(opened, self._times)
        token = self._token(opening)
        with transaction(opened):
            if token is None and not is_last:
                return None
            if lack := _lack(opening, token, request):
                return lack
            rows = opened.query(request.sql, request.args)
            if self._snapshots.is_settled(opened, opening):
                return Answer(rows, opening, token)
            if not is_last:
                return None
            return _lack(opening, None, request) or Answer(rows, opening, None)

    def _token(self, opening: Opening) -> EventToken | None:
        position = opening.position
        if position is None:
            return None
        if isinstance(position, MariadbGtidSet):
            # A server forgets who wrote before when it writes again; what was read remembers.
            position = position.knowing(self._newest)
            if not self._newest.includes(position):
                self._newest = position
        return EventToken(opening.timestamp_us, self.shard, position)

    def _wait(self, opened: OpenConnection, lack: Lack, left_s: float) -> None:
        """Wait for what is lacking: by its GTIDs, or for a moment if they say nothing here."""
        wanted = lack.wanted
        is_here = wanted is not None and wanted.shard == self.shard
        if wanted is not None and is_here and not lack.opening.is_primary:
            self._snapshots.wait(opened, wanted.position, left_s)
        else:
            time.sleep(min(POLL_S, left_s))

    def _no_answer(
        self, request: Request, lacks: list[Lack], faults: list[ServerLost]
    ) -> Stale | ServerLost:
        where = f"{self.keyspace}.{self.shard}"
        lost = "".join(f"; {fault}" for fault in faults)
        behind = [(lack, lack.wanted) for lack in lacks if lack.wanted is not None]
        if not behind:
            others = ", ".join(lack.opening.server for lack in lacks)
            found = f": {others} has the other role" if others else ""
            role = "server" if request.role == "any" else request.role
            return ServerLost(f"{where}: no {role} answers{found}{lost}")
        primaries = [(lack, wanted) for lack, wanted in behind if lack.opening.is_primary]
        lack, wanted = (primaries or behind)[-1]
        is_lost = bool(primaries) and _is_known(lack, wanted)
        text = f"{where}: {_lacking(lack, wanted, is_lost=is_lost)}{lost}"
        return Stale(text, wanted, is_lost=is_lost)


def _range(token: EventToken) -> KeyRange:
    return ShardName.parse(token.shard).key_range


def _lack(opening: Opening, token: EventToken | None, request: Request) -> Lack | None:
    if request.role != "any" and opening.is_primary is not (request.role == "primary"):
        return Lack(opening, token, None)
    read = {} if token is None else {token.shard: token}
    for wanted in request.at_least:
        if not holds(read, wanted):
            return Lack(opening, token, wanted)
    return None


def _is_known(lack: Lack, wanted: EventToken) -> bool:
    """Whether the server's GTIDs say that it lacks the change."""
    return lack.token is not None and wanted.shard == lack.token.shard


def _lacking(lack: Lack, wanted: EventToken, *, is_lost: bool) -> str:
    """What a server lacks, and what to do about it."""
    server = f"{lack.opening.server} ({'primary' if lack.opening.is_primary else 'replica'})"
    if lack.token is None:
        return (
            f"{server} cannot tell its position: its binlog has just begun a new file. Read again; "
            'producer.heartbeat_rows = "always" keeps an idle server from it'
        )
    if wanted.shard != lack.token.shard:
        return (
            f"{server} does not prove that it holds a change of shard {wanted.shard} "
            f"({wanted.position}): its newest heartbeat row is not later than the change"
        )
    missing = wanted.position.subtract(lack.token.position)
    if is_lost:
        return (
            f"{server} lacks {missing}: a failover has lost the change, or it was made elsewhere. "
            "Read without it"
        )
    return f"{server} lacks {missing}, and no server that has it answers. Read again later"
