"""Reads one shard, from replicas and its primary, and says how fresh what it read is."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Self

from caching.errors import CacheFindings, NotServing, Stale, TooOld
from caching.protocol.freshness import holds
from caching.reading.connections import HIDDEN_S, Connect, OpenConnection, Server, error_code
from caching.reading.reader import FreshRows, ServerRole
from caching.reading.snapshots import (
    ReadTransaction,
    Snapshots,
    TimeBound,
    snapshots_of,
    time_columns,
    transaction,
)
from databases.errors import ServerLost, ServerRefused
from databases.internal_tables import HEARTBEAT
from event_token import (
    ClockUncertainty,
    EventToken,
    Flavor,
    KeyRange,
    MariadbGtidSet,
    Order,
    ShardName,
    UsageError,
    compare,
)
from event_token.decoded import time_text
from topics.records.values import EPOCH_UTC
from topics.start.start_forms import parse_time

# How often a read is begun again: the position of the snapshot is unknown, or a DDL statement came
# between snapshot and read.
REPEATS_MAX: Final = 1
# Between two attempts where a server has nothing to wait for.
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
# gtid_mode may also be ON_PERMISSIVE, with transactions that have no GTID.
_ON: Final = frozenset({"1", "ON"})
TIMES_GRANT: Final = "GRANT SELECT ON `_shardstream`.* TO the account"


@dataclass(frozen=True, slots=True)
class _Request:
    """What to read, and what the answer must hold: changes, and all up to a time or an age."""

    sql: str
    args: Any
    at_least: tuple[EventToken, ...]
    wait_s: float
    role: ServerRole
    prefer: str | None = None
    up_to_us: int | None = None
    age_us_max: int | None = None
    must_serve: bool = False

    def is_met(self, bound: TimeBound | None) -> bool:
        """Whether a read is as new as the time and the age demand; None proves neither."""
        if self.up_to_us is None and self.age_us_max is None:
            return True
        return (
            bound is not None
            and (self.up_to_us is None or bound.complete_us >= self.up_to_us)
            and (self.age_us_max is None or bound.age_us <= self.age_us_max)
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Rows, the transaction that they were read in, its token, and the time that they hold."""

    rows: list[Any]
    opening: ReadTransaction
    token: EventToken | None
    bound: TimeBound | None
    has_waited: bool = False


@dataclass(frozen=True, slots=True)
class _Lack:
    """Why a server did not answer: it lacks `wanted`, is too old, or has another role.

    `bound`: the time that its rows hold. `fault`: why it does not show that the shard serves.
    """

    opening: ReadTransaction
    token: EventToken | None
    wanted: EventToken | None = None
    is_too_old: bool = False
    bound: TimeBound | None = None
    has_waited: bool = False
    fault: NotServing | UsageError | None = None

    @property
    def is_final(self) -> bool:
        """Whether the next server is asked at once: this one has another role, or is far behind."""
        return self.wanted is None and not self.is_too_old


class FreshReader:
    """Reads one shard. Threads may share a reader; each read has a connection of its own.

    `servers`: functions that return a DBAPI connection, replicas first, then the primary. Roles are
    asked of the servers at each read. `flavor`: "mysql" or "mariadb". `clock`: how far the clocks
    of the keyspace's servers may be off, for comparisons with changes of other shards, and that of
    this host, for ages. `was_target`: whether a reshard has filled the shard. If given, only a
    server answers whose journal shows that the shard serves: it has no END, and a target has its
    BEGIN and a time.
    """

    def __init__(
        self,
        keyspace: str,
        shard: str,
        servers: Sequence[Connect],
        *,
        flavor: Flavor | str,
        clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen
        was_target: bool | None = None,
    ) -> None:
        """Connect with the first read. UsageError on a shard name or servers that cannot be."""
        self._range = ShardName.parse(shard).key_range
        if not servers:
            raise UsageError(f"{keyspace}.{shard}: a reader needs at least one server")
        self.keyspace = keyspace
        self.shard = shard
        self.flavor = Flavor(flavor)
        self.clock = clock
        self._was_target = was_target
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
        at_least: EventToken | Iterable[EventToken] | datetime | None = None,
        max_age_ms: int | None = None,
        wait_s: float = 0.05,
        server: ServerRole = "any",
        prefer: str | None = None,
    ) -> FreshRows:
        """Read in a read-only transaction of its own; `args` are the driver's.

        `at_least`: a change; the writes of a session, of which those count that overlap the shard's
        key range; or a time with a time zone, up to which the rows hold all that was committed.
        `max_age_ms`: how old the rows may be when the read begins. Times and ages are proven by
        heartbeat rows and the bounds of clocks in them. A server that lacks what is wanted gets
        `wait_s` seconds, then the next one is asked, and the primary last. `prefer`: the server, as
        `FreshRows` names it, that is asked before the others of its role. Raises Stale if that
        lacks the change, too, TooOld if no server proves the time or age, ServerLost if no server
        answers, ServerRefused, UsageError, and the driver's own errors for the statement. With
        `was_target`, NotServing if the shard has ended or not begun, UsageError if its journal is
        not shown.
        """
        up_to_us = None
        if isinstance(at_least, datetime):
            up_to_us = parse_time(at_least, "at_least")
            at_least = None
        if max_age_ms is not None and max_age_ms < 0:
            raise UsageError(f"max_age_ms is {max_age_ms}: rows cannot be newer than the read")
        age_us_max = None if max_age_ms is None else max_age_ms * 1_000
        wanted = self._wanted(at_least)
        must_serve = self._was_target is not None
        answer = self._answer(
            _Request(sql, args, wanted, wait_s, server, prefer, up_to_us, age_us_max, must_serve)
        )
        fresher = None
        if compare_event_token is not None and answer.token is not None:
            other = compare_event_token
            other = EventToken.from_string(other) if isinstance(other, str) else other
            fresher = _FRESHER[compare(answer.token, other, self.clock)]
        token = answer.token if include_event_token else None
        bound, age_ms, complete_to = answer.bound, None, None
        if bound is not None:
            age_ms = bound.age_us / 1_000
            complete_to = EPOCH_UTC + timedelta(microseconds=bound.complete_us)
        return FreshRows(
            answer.rows,
            token,
            fresher,
            answer.opening.server,
            answer.opening.is_primary,
            answer.has_waited,
            age_ms,
            complete_to,
        )

    def check(self) -> CacheFindings:
        """Ask every server what a preflight has to know: settings, grants, roles.

        A server that does not answer is a warning, unless it is all of them.
        """
        where = f"{self.keyspace}/{self.shard}"
        found = CacheFindings()
        lost: list[str] = []
        has_primary = False
        for server in self._servers:
            try:
                with server.connection() as opened:
                    opening = self._snapshots.begin(opened, self._times)
                    with transaction(opened):
                        self._check_server(opened, opening, found)
                    has_primary |= opening.is_primary
            except ServerLost as fault:
                lost.append(f"{where}: {fault}")
            except (ServerRefused, UsageError) as fault:
                found.problems.append(f"{where}: {fault}")
        if len(lost) == len(self._servers):
            found.problems += lost
        else:
            found.warnings += lost
            if not has_primary and not lost and not found.problems:
                found.warnings.append(
                    f"{where}: none of its servers is a primary, from which own writes and keys "
                    f"that change often are read. Fix: add the primary as the last server"
                )
        return found

    def _check_server(
        self, opened: OpenConnection, opening: ReadTransaction, found: CacheFindings
    ) -> None:
        here = f"{self.keyspace}/{self.shard} {opening.server}"
        for name, value in server_settings(self.flavor, is_primary=opening.is_primary).items():
            [(is_set,)] = opened.ask(f"SELECT @@GLOBAL.{name}")
            if str(is_set).upper() not in _ON:
                found.problems.append(f"{here}: {name}={is_set}. Fix: {value}")
        if not opening.is_primary:
            self._check_filters(opened, here, found)
        times = opening.time
        if times is None:
            text = (
                f"{here}: reads have no time, so they prove nothing across a reshard. Fix: "
                f"{TIMES_GRANT} (the producer's heartbeat rows create the tables)"
            )
            (found.warnings if self._was_target is None else found.problems).append(text)
        elif times.heartbeat_us and opening.timestamp_us is None and not times.has_ended:
            found.warnings.append(
                f"{here}: reads have no time, because commits do not show in the order of the log. "
                f"Fix: replica_preserve_commit_order=ON and binlog_order_commits=ON (MySQL), or "
                f"one GTID domain (MariaDB)"
            )
        if (
            times is not None
            and times.at_max_us > times.at_min_us
            and not self.clock.uncertainty_us
        ):
            found.warnings.append(
                f"{here}: the producer's clock may be off by "
                f"{(times.at_max_us - times.at_min_us) // 2} us, but this host's clock is taken as "
                f"exact, so an age may be too low. Fix: set uncertainty_us in [clock], and give "
                f"the reader clock=clock_from_settings(None)"
            )
        shards = opened.ask_if_shown(f"SELECT keyspace, shard FROM {HEARTBEAT} ORDER BY 1, 2")
        names = [f"{keyspace}/{shard}" for keyspace, shard in shards or ()]
        if names and f"{self.keyspace}/{self.shard}" not in names:
            found.warnings.append(
                f"{here}: its heartbeat rows are of {', '.join(names)}. Fix: name the servers of "
                f"{self.shard}, unless this is one of them"
            )

    def _check_filters(self, opened: OpenConnection, here: str, found: CacheFindings) -> None:
        try:
            filters = self._snapshots.filters(opened)
        except ServerRefused as fault:
            found.problems.append(f"{here}: replication filters cannot be seen: {fault}")
            return
        for name, value in filters:
            found.problems.append(
                f"{here}: {name} is {value}: its rows lack changes that its GTIDs name. Fix: do "
                f"not read from it; or remove the filter here and from the server's option file, "
                f"and rebuild the server from its source"
            )

    def committed(self, connection: Any) -> EventToken:
        """The token of the commit that this connection has just made, for `at_least`.

        On MySQL it holds all that the server has executed by now. Its time is that of the server's
        clock now, so ask right behind the commit: what is asked on a source after its END may pass
        for later than a write on its target. Without SELECT on `_shardstream.*` there is none.
        UsageError within a transaction, and on MariaDB if the connection has written nothing.
        """
        opened = OpenConnection(connection)
        position, clock_us = self._snapshots.last_commit(opened)
        token = EventToken(None, self.shard, position)
        begun_us = self._begun_us(token)
        if begun_us is None:
            return token
        # On any clocks: no read of a source of this shard's reshard is as late.
        return replace(token, timestamp_us=max(clock_us, begun_us))

    def _begun_us(self, written: EventToken) -> int | None:
        """When the shard's BEGIN was, 0 if it was never a target; None if that is not shown.

        It never changes for a shard that takes writes.
        """
        now_s = time.monotonic()
        if self._begun is None and now_s >= self._begun_due_s:
            self._begun_due_s = now_s + HIDDEN_S
            # The commit has been made: what refuses the look leaves its token without a time.
            with suppress(Stale, ServerLost, ServerRefused):
                look = _Request("SELECT 1", (), (written,), LOOK_S_MAX, "any")
                shown = self._answer(look).opening.time
                self._begun = None if shown is None else shown.begun_us
        return self._begun

    def _answer(self, request: _Request) -> _Answer:
        """Ask one server after the other. Raises what `execute` raises."""
        lacks: list[_Lack] = []
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
            if isinstance(found, _Answer):
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

    def _ask(self, server: Server, request: _Request) -> _Answer | _Lack:
        with suppress(ServerLost), server.connection() as opened:
            return self._read(server, opened, request)
        # An idle connection may have died with its server, and the others as well.
        server.close()
        with server.connection() as opened:
            return self._read(server, opened, request)

    def _read(self, server: Server, opened: OpenConnection, request: _Request) -> _Answer | _Lack:
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
            if isinstance(found, _Answer) or found.is_final or left_s <= 0:
                return replace(found, has_waited=has_waited)
            self._wait(opened, found, left_s)
            has_waited = True

    def _read_once(
        self, opened: OpenConnection, request: _Request, *, is_last: bool
    ) -> _Answer | _Lack | None:
        """One transaction. None if the read has to be begun again, unless this `is_last`."""
        begun_us = time.time_ns() // 1_000
        opening = self._snapshots.begin(opened, self._times)
        opened_us = time.time_ns() // 1_000
        bound = opening.bound(begun_us, opened_us, self.clock.uncertainty_us)
        token = self._token(opening)
        with transaction(opened):
            if token is None and not is_last:
                return None
            if lack := self._lack(opening, token, bound, request):
                return lack
            rows = opened.query(request.sql, request.args)
            if self._snapshots.is_settled(opened, opening):
                return _Answer(rows, opening, token, bound)
            if not is_last:
                return None
            lack = self._lack(opening, None, bound, request)
            return lack or _Answer(rows, opening, None, bound)

    def _lack(
        self,
        opening: ReadTransaction,
        token: EventToken | None,
        bound: TimeBound | None,
        request: _Request,
    ) -> _Lack | None:
        if request.role != "any" and opening.is_primary is not (request.role == "primary"):
            return _Lack(opening, token)
        if request.must_serve and (fault := self._fault(opening)):
            return _Lack(opening, token, fault=fault)
        read = {} if token is None else {token.shard: token}
        for wanted in request.at_least:
            if not holds(read, wanted, self.clock):
                return _Lack(opening, token, wanted)
        if not request.is_met(bound):
            return _Lack(opening, token, is_too_old=True, bound=bound)
        return None

    def _fault(self, opening: ReadTransaction) -> NotServing | UsageError | None:
        """Why a server does not show that the shard serves, None if it does.

        The next one is asked: a replica may have the END of a switch that was cancelled since, or
        may not have the tables yet.
        """
        here = f"{self.keyspace}.{self.shard}: {opening.server}"
        times = opening.time
        if times is None:
            return UsageError(
                f"{here} does not show whether the shard still serves. Fix: {TIMES_GRANT} (the "
                f"producer's heartbeat rows create the tables)"
            )
        if times.has_ended:
            return NotServing(f"{here} has its END: a reshard has replaced it")
        # Without BEGIN the server may be behind the reshard's beginning, where it shows no role. A
        # time also proves that commits show in order: what was filled in before BEGIN is there.
        has_begun = bool(times.begun_us) and opening.timestamp_us is not None
        if has_begun or (not self._was_target and times.begun_us is not None):
            return None
        return NotServing(
            f"{here} does not prove that it has the BEGIN of the reshard that filled the shard: it "
            f"lags, or commits do not show in the order of the log"
        )

    def _token(self, opening: ReadTransaction) -> EventToken | None:
        position = opening.position
        if position is None:
            return None
        if isinstance(position, MariadbGtidSet):
            # A server that writes again forgets the writer before it; the newest position has it.
            position = position.knowing(self._newest)
            if not self._newest.includes(position):
                self._newest = position
        return EventToken(opening.timestamp_us, self.shard, position)

    def _wait(self, opened: OpenConnection, lack: _Lack, left_s: float) -> None:
        """Wait for the missing change: by its GTIDs, or for a moment if they say nothing here."""
        wanted = lack.wanted
        is_here = wanted is not None and wanted.shard == self.shard
        if wanted is not None and is_here and not lack.opening.is_primary:
            self._snapshots.wait(opened, wanted.position, left_s)
        else:
            time.sleep(min(POLL_S, left_s))

    def _no_answer(
        self, request: _Request, lacks: list[_Lack], faults: list[ServerLost]
    ) -> NotServing | Stale | TooOld | ServerLost | UsageError:
        where = f"{self.keyspace}.{self.shard}"
        lost = "".join(f"; {fault}" for fault in faults)
        at_fault = [(lack.opening, lack.fault) for lack in lacks if lack.fault is not None]
        for opening, fault in at_fault:
            if opening.is_primary:
                return type(fault)(f"{fault}{lost}")
        if too_old := [lack for lack in lacks if lack.is_too_old]:
            servers = "; ".join(map(_aged, too_old))
            return TooOld(f"{where}: {_demand(request)}, and no server proves it: {servers}{lost}")
        behind = [(lack, lack.wanted) for lack in lacks if lack.wanted is not None]
        if at_fault and not behind:
            _, fault = at_fault[-1]
            return type(fault)(f"{fault}{lost}")
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


def _demand(request: _Request) -> str:
    """What a read by time, by age or by both asks for."""
    found = []
    if request.up_to_us is not None:
        found.append(f"rows must hold everything up to {time_text(request.up_to_us)}")
    if request.age_us_max is not None:
        found.append(f"rows may be {request.age_us_max / 1_000:,.0f} ms old")
    return " and ".join(found)


def _aged(lack: _Lack) -> str:
    """How old a server's rows can be, or why that is not known."""
    server, bound, times = _server(lack), lack.bound, lack.opening.time
    if bound is not None:
        text = f"{server} may be {bound.age_us / 1_000:,.0f} ms behind"
        clocks = f" ({bound.clocks_us / 1_000:,.0f} ms of it because clocks may be off)"
        return text + (clocks if bound.clocks_us else "")
    if times is None:
        return f"{server} shows no times: {TIMES_GRANT}"
    if lack.opening.timestamp_us is None:
        return (
            f"{server} has no time: there is no heartbeat row (producer.heartbeat_rows = "
            '"always"), the shard is within a reshard, or commits do not show in the order of the '
            "log"
        )
    if not times.at_min_us:
        return (
            f"{server} has no heartbeat row with an interval: the shard's producer does not know "
            "how far its clock may be off, and says why"
        )
    return (
        f"{server} has a heartbeat row from this host's future, so a clock is off by more than "
        f"[clock] says: synchronize that of the producer's host and of this one"
    )


def _server(lack: _Lack) -> str:
    """A server and its role, for messages."""
    return f"{lack.opening.server} ({'primary' if lack.opening.is_primary else 'replica'})"


def _range(token: EventToken) -> KeyRange:
    return ShardName.parse(token.shard).key_range


def _is_known(lack: _Lack, wanted: EventToken) -> bool:
    """Whether the server's GTIDs say that it lacks the change."""
    return lack.token is not None and wanted.shard == lack.token.shard


def _lacking(lack: _Lack, wanted: EventToken, *, is_lost: bool) -> str:
    """What a server lacks, and what to do about it."""
    server = _server(lack)
    if lack.token is None:
        return (
            f"{server} has no known position: its binlog has just begun a new file. Read again; "
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


def server_settings(flavor: Flavor, *, is_primary: bool) -> dict[str, str]:
    """Return the settings that have to be on, each with the statement that turns it on."""
    match flavor:
        case Flavor.MYSQL:
            return {"gtid_mode": "SET PERSIST gtid_mode = ON, by way of OFF_PERMISSIVE and "
                                 "ON_PERMISSIVE"}  # fmt: skip
        case Flavor.MARIADB:
            strict = {"gtid_strict_mode": "SET GLOBAL gtid_strict_mode = ON"}
            log = {"log_bin": "start the server with --log-bin"}
            return strict | log if is_primary else strict
