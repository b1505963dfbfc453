"""Advances a shard's head (watermark) while no row does: by the server's clock, or heartbeat rows.

A head promises that every later record is stamped no earlier. The server is asked for its clock
and executed GTID set; once the log has reached that set, the clock's time is promised.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from databases.connection import rows_if_there, write_row
from databases.errors import ServerLost
from databases.internal_tables import HEARTBEAT, JOURNAL, ROLE, create_internal_tables
from databases.server_facts import SERVER_CLOCK, ServerMoment, is_on
from databases.sql import rows
from event_token import parse_gtid_set
from event_token.errors import ShardstreamError
from producers.clock import believed_us, clock_ahead_us, now_us
from producers.errors import BetterServer, ClockUnknown, ServerBehindLog
from producers.replication.stream import server_errors
from producers.servers.choice import unreachable
from producers.servers.server_list import OpenServer, open_server
from producers.session.committer import Committer
from producers.session.context import SessionContext
from producers.settings import ShardProducerSettings
from producers.start.choose_start import ChosenStart

# While bytes keep coming, how often the log is compared with the executed set.
COMPARE_S: Final = 0.05
# An executed set that a dry stream does not reach within this time is looked into: GTIDs may have
# been added or purged by hand.
UNREACHED_S_MAX: Final = 10.0


class ServerClock:
    """Asks a session's server for its clock and executed set when it is time to.

    `is_replica` and `ahead_us`, by how much the server's clock is ahead of this host's, are as of
    the last time it was asked.
    """

    def __init__(
        self, context: SessionContext, start: ChosenStart, notice: Callable[[str], None]
    ) -> None:
        self.is_replica = start.is_replica
        self.ahead_us = 0
        self.asked_s = 0.0
        # What the log must reach before its time may be promised; None: not asked.
        self.moment: ServerMoment | None = None
        self.notice = notice
        self._server = start.server
        self._counters = context.counters
        self._bound_us = context.settings.max_clock_ahead_ms * 1000
        self._period_s = context.settings.heartbeat_ms / 1000
        self._is_clock_off = False

    def now_us(self) -> int:
        """The server's clock, in microseconds since the epoch, as far as it is known."""
        return now_us() + self.ahead_us

    def ask_if_due(self, committed_s: float, head_us: int) -> ServerMoment | None:
        """The moment that the log has to reach, asked for now if it is time.

        That is when nothing has been committed since `committed_s` (monotonic) for a heartbeat
        period, or when the committed head, `head_us`, is old.
        """
        now_s = time.monotonic()
        is_old = now_us() - head_us > self._bound_us and not self.is_replica
        is_due = now_s - committed_s >= self._period_s or (
            is_old and now_s - self.asked_s >= self._period_s
        )
        if self.moment is None and is_due:
            self._ask()
        return self.moment

    def _ask(self) -> None:
        server = self._server
        with server_errors(server.settings, "asking for clock and executed set of"):
            asked_us = now_us()
            moment, is_replica = server.family.moment_and_role(server.connection)
            answered_us = now_us()
        was_replica, self.moment, self.is_replica = self.is_replica, moment, is_replica
        if was_replica and not self.is_replica:
            raise BetterServer(f"{server.name} was promoted: checking it as a primary")
        self.asked_s = time.monotonic()
        self.ahead_us = clock_ahead_us(asked_us, moment.clock_us, answered_us)
        self._counters.clock_ahead_us = self.ahead_us
        if abs(self.ahead_us) > self._bound_us:
            if not self._is_clock_off:
                self.notice(
                    f"the clock of {server.name} is {self.ahead_us} us ahead of this host's, more "
                    "than max_clock_ahead_ms: heads follow this host's clock instead"
                )
            self._is_clock_off = True

    def take_moment(self) -> int:
        """The head to promise now that the log has reached the moment; 0 on a replica.

        Later transactions may bear an earlier commit time (by up to 0.1 s under load, or by a
        whole statement on MariaDB): the decoder clamps them to this head. A replica's clock says
        nothing about what the primary has committed.
        """
        moment, self.moment = self.moment, None
        if moment is None or self.is_replica:
            return 0
        return believed_us(moment.clock_us, now_us(), self._bound_us)

    def head_of_row(self, heartbeat_us: int) -> int:
        """The head that the last heartbeat row gives, on a replica and on a primary; 0 for none."""
        return min(heartbeat_us, now_us() + self._bound_us)


class HeadKeeper:
    """Promises heads between rows and commits them."""

    def __init__(self, clock: ServerClock, committer: Committer) -> None:
        self._clock = clock
        self._committer = committer
        self._decoder = committer.decoder
        self._compared_s = 0.0

    def advance(self, *, dry: bool) -> None:
        """Promise the server's clock if it is due and the log holds all executed by then.

        Raises BinlogPurged, ServerBehindLog and ReplicaBehindLog where the log can no longer
        reach what the server has executed.
        """
        if self._decoder.in_transaction:
            return
        clock, committer, now_s = self._clock, self._committer, time.monotonic()
        committer.promise(clock.head_of_row(self._decoder.heartbeat_us))
        moment = clock.ask_if_due(committer.committed_s, committer.committed.head_us)
        if moment is None or not (dry or now_s - self._compared_s >= COMPARE_S):
            return
        self._compared_s = now_s
        if self._decoder.reached(moment.executed):
            committer.promise(clock.take_moment())
            committer.commit(is_live=True)
        elif dry and now_s - clock.asked_s > UNREACHED_S_MAX:
            self._explain_unreached()

    def _explain_unreached(self) -> None:
        """Raise what explains that the executed set is not reached; else ask again."""
        self._committer.commit()  # The position may have moved without a row.
        server = self._committer.server
        position = parse_gtid_set(self._committer.committed.position, server.family.flavor)
        view = server.look(is_replica=self._clock.is_replica)
        topics, lasts = self._committer.publisher.topics, self._committer.committed.lasts
        fault = unreachable(topics, position, view, lasts)
        if fault is not None:
            raise fault
        self._clock.moment = None
        self._clock.notice(f"{server.name} has executed what its binlog stream has not sent yet")


PRIVILEGES: Final = ("CREATE", "SELECT", "INSERT", "UPDATE")
# Together they say what the time of a read is worth.
TABLES_OF_READS: Final = (HEARTBEAT, JOURNAL, ROLE)
NO_INTERVAL: Final = "without an interval in heartbeat rows fresh reads have no age"
# How often the server that gets the rows is asked for its role: it may have been demoted, even
# without read_only, and what is written there by then is on no other server.
ROLE_S: Final = 1.0
# After a fault: the primary may be failing over, or a grant may be missing.
PAUSE_S: Final = 1.0
# The thread may be waiting for a server that does not answer; closing does not wait for that.
CLOSE_S_MAX: Final = 1.0

# Keyspace, shard, this host's clock, the bound, this host's clock, which stands in for a clock that
# is far off, and the interval. It writes nothing on a server that refuses writes of applications,
# however privileged the account is: it was demoted, and a row would make its reads pass for fresh.
_WRITE: Final = (
    f"INSERT INTO {HEARTBEAT} (keyspace, shard, at_us, at_min_us, at_max_us) "  # noqa: S608 - ours
    f"SELECT %s, %s, IF(ABS({SERVER_CLOCK} - %s) <= %s, {SERVER_CLOCK}, %s), %s, %s "
    "FROM DUAL WHERE CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF') "
    "ON DUPLICATE KEY UPDATE at_us = VALUES(at_us), at_min_us = VALUES(at_min_us), "
    "at_max_us = VALUES(at_max_us)"
)


class HeartbeatWriter:
    """A thread that writes the shard's heartbeat row on the primary, always or while `wanted`.

    `note` says why it cannot, or why the rows have no interval; "" if all is well. `ended_by`: the
    reshards whose END the log holds, and whose CANCELLED it does not hold.
    """

    def __init__(
        self,
        settings: ShardProducerSettings,
        wanted: Callable[[], bool],
        ended_by: Sequence[str] = (),
    ) -> None:
        """Start the thread if there is more than one server, or rows are always written."""
        self.note = ""
        self.ended_by = ended_by
        self._settings = settings
        self._wanted = wanted
        self._period_s = settings.heartbeat_ms / 1000
        self._primary: OpenServer | None = None
        self._role_asked_s = 0.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat rows", daemon=True)
        self._is_always = settings.heartbeat_rows == "always"
        if len(settings.servers) > 1 or self._is_always:
            self._thread.start()

    def close(self) -> None:
        """Ask the thread to end and wait briefly."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S_MAX)

    def _run(self) -> None:
        wait_s = self._period_s
        try:
            while not self._ending.wait(wait_s):
                wait_s = self._period_s
                try:
                    if self._is_always or self._wanted():
                        self.note = self._write()
                except Exception as fault:  # noqa: BLE001 - the note reports it; the thread goes on
                    self.note = f"without heartbeat rows an idle shard holds readers back: {fault}"
                    self._forget()
                    wait_s = max(PAUSE_S, self._period_s)
        finally:
            self._forget()

    def _write(self) -> str:
        primary = self._still_primary() or self._find()
        if primary is None:
            raise ServerLost(
                "no primary of the shard answers and takes writes (read_only is OFF): start it, or "
                "add it to `servers`"
            )
        with server_errors(primary.settings, "writing a heartbeat row on"):
            if self._is_always and self._primary is None:
                create_tables_of_reads(primary.connection)
            check_ended(primary, self._settings.keyspace, self.ended_by)
            note = write_heartbeat(primary.connection, self._settings)
        self._primary = primary
        return note

    def _still_primary(self) -> OpenServer | None:
        """The server of the last row, unless it has another role by now."""
        primary, now_s = self._primary, time.monotonic()
        if primary is not None and now_s - self._role_asked_s >= ROLE_S:
            self._primary = None
            self._role_asked_s = now_s
            self._primary = primary if _takes_writes(primary) else None
        return self._primary

    def _find(self) -> OpenServer | None:
        for settings in self._settings.servers:
            with suppress(ShardstreamError):  # The primary may be another one.
                server = open_server(settings, self._settings, is_checked=False)
                if _takes_writes(server):
                    self._role_asked_s = time.monotonic()
                    return server
        return None

    def _forget(self) -> None:
        if self._primary is not None:
            self._primary.close()
            self._primary = None


def check_ended(server: OpenServer, keyspace: str, reshards: Iterable[str]) -> None:
    """Raise ServerBehindLog if a primary lacks an END that is in the log of its shard.

    Its reads would go on, with a time and an age, while others take the shard's writes.
    """
    query = f"SELECT 1 FROM {JOURNAL} WHERE keyspace = %s AND reshard_id = %s"  # noqa: S608 - ours
    for reshard_id in reshards:
        if not rows_if_there(server.connection, query, (keyspace, reshard_id)):
            raise ServerBehindLog(
                f"{server.name} lacks the END of reshard {reshard_id}, which is in the log: a "
                f"failover has lost it"
            )


def _takes_writes(server: OpenServer) -> bool:
    """Whether it is a primary that is not fenced; the connection to any other is closed."""
    takes_writes = False
    try:
        if not server.is_replica():
            with server_errors(server.settings, "asking for the role of"):
                [(read_only,)] = rows(server.connection, "SELECT @@GLOBAL.read_only")
            takes_writes = not is_on(read_only)
    finally:
        if not takes_writes:
            server.close()
    return takes_writes


def write_heartbeat(connection: Any, settings: ShardProducerSettings) -> str:
    """Write the shard's row; create the table if it is missing.

    `at_us` is of the server's clock, as commits are. True time was within `at_min_us`..`at_max_us`
    when this host's clock was read, just before the statement: what was committed by `at_min_us`
    lies before the row in the log, whatever the server's clock. Returns why there is no interval,
    "" if there is one. ServerLost if the server is read-only: it is no primary any more.
    """
    note, bound_us = "", None
    try:
        bound_us = settings.host_clock.bound_us()
    except ClockUnknown as fault:
        note = f"{NO_INTERVAL}: {fault}"
    own_us = now_us()
    interval = (None, None) if bound_us is None else (own_us - bound_us, own_us + bound_us)
    shard = (settings.keyspace, settings.shard)
    values = (*shard, own_us, settings.max_clock_ahead_ms * 1000, own_us, *interval)
    if not write_row(connection, HEARTBEAT, _WRITE, values):
        raise ServerLost("the primary takes no writes any more (read_only): looking for another")
    return note


def create_tables_of_reads(connection: Any) -> None:
    """Create those tables that are missing without which a fresh read has no time."""
    missing = [
        table
        for table in TABLES_OF_READS
        if rows_if_there(connection, f"SELECT 1 FROM {table} LIMIT 0") is None  # noqa: S608 - ours
    ]
    if missing:
        create_internal_tables(connection, missing)
