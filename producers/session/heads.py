"""Advances a shard's head (watermark) while no row does: by the server's clock, or heartbeat rows.

A head promises that every later record is stamped no earlier. The server is asked for its clock
and executed GTID set; once the log has reached that set, the clock's time is promised.
"""

import time
from collections.abc import Callable
from typing import Final

from databases.server_facts import ServerMoment
from event_token import parse_gtid_set
from producers.decoder import Decoder
from producers.errors import BetterServer
from producers.replication.stream import server_errors
from producers.servers.reachable import check_reachable
from producers.servers.server_list import OpenServer
from producers.session.committer import Committer
from producers.session.context import SessionContext

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
        self,
        context: SessionContext,
        server: OpenServer,
        notice: Callable[[str], None],
        *,
        is_replica: bool,
    ) -> None:
        """The server has not been asked yet."""
        self.is_replica = is_replica
        self.ahead_us = 0
        self.asked_s = 0.0
        # What the log must reach before its time may be promised; None: not asked.
        self.moment: ServerMoment | None = None
        self._server = server
        self._notice = notice
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
            moment = self.moment = server.family.moment(server.connection)
            answered_us = now_us()
            was_replica = self.is_replica
            self.is_replica = server.family.is_replica(server.connection)
        if was_replica and not self.is_replica:
            raise BetterServer(f"{server.name} was promoted: checking it as a primary")
        self.asked_s = time.monotonic()
        self.ahead_us = clock_ahead_us(asked_us, moment.clock_us, answered_us)
        self._counters.clock_ahead_us = self.ahead_us
        if abs(self.ahead_us) > self._bound_us:
            if not self._is_clock_off:
                self._notice(
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

    def __init__(
        self,
        context: SessionContext,
        server: OpenServer,
        clock: ServerClock,
        decoder: Decoder,
        committer: Committer,
        *,
        notice: Callable[[str], None],
    ) -> None:
        """Begin with a clock that may not have been asked yet."""
        self._context = context
        self._server = server
        self._clock = clock
        self._decoder = decoder
        self._committer = committer
        self._notice = notice
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
        server = self._server
        position = parse_gtid_set(self._committer.committed.position, server.family.flavor)
        history = server.history()
        check_reachable(
            self._context.topics, server.name, position, history, replica=self._clock.is_replica
        )
        self._clock.moment = None
        self._notice(f"{server.name} has executed what its binlog stream has not sent yet")


def clock_ahead_us(asked_us: int, server_us: int, answered_us: int) -> int:
    """How far, at least, a server's clock is ahead of this host's; negative where it is behind.

    It read `server_us` at some time between question and answer; what may have passed on the way
    does not count as a difference. Pure.
    """
    return max(0, server_us - answered_us) + min(0, server_us - asked_us)


def believed_us(server_us: int, own_us: int, bound_us: int) -> int:
    """The time that a head may promise: the server's clock, or this host's if they are far apart.

    A head may be any time, for later records are clamped to it. But a server's clock that is far
    behind would hold back the merged stream, and one far ahead would put the shard's own records
    behind everybody else's. Pure.
    """
    return server_us if abs(server_us - own_us) <= bound_us else own_us


def now_us() -> int:
    """The clock of this host, in microseconds since the epoch."""
    return time.time_ns() // 1000
