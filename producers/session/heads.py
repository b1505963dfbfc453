"""What may be promised as head: the server's clock, or heartbeat rows that a replica applied."""

import time
from collections.abc import Callable

from databases.server_facts import ServerMoment
from producers.servers.connection import server_errors
from producers.servers.server_list import OpenServer
from producers.settings import ShardProducerSettings


class Heads:
    """Asks a session's server for clock and executed set when it is time to.

    `is_replica` and `clock_ahead_us` are as of the last time it was asked.
    """

    def __init__(
        self,
        settings: ShardProducerSettings,
        server: OpenServer,
        notice: Callable[[str], None],
        *,
        is_replica: bool,
    ) -> None:
        """Begin without having asked for a clock."""
        self.is_replica = is_replica
        self.clock_ahead_us = 0
        self.asked_s = 0.0
        # What the log must reach before anything may be promised; None: nothing was asked.
        self.moment: ServerMoment | None = None
        self._server = server
        self._notice = notice
        self._bound_us = settings.max_clock_ahead_ms * 1000
        self._period_s = settings.heartbeat_ms / 1000
        self._is_clock_off = False

    def ask_if_due(self, progress_s: float, head_us: int) -> ServerMoment | None:
        """The moment that the log has to reach, asked for now if it is time.

        That is when nothing was committed since `progress_s` (monotonic) for a while, or when what
        is committed (`head_us`) says an old time.
        """
        now_s = time.monotonic()
        is_old = now_us() - head_us > self._bound_us and not self.is_replica
        is_due = now_s - progress_s >= self._period_s or (
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
            self.is_replica = server.family.is_replica(server.connection)  # It may have changed.
        self.asked_s = time.monotonic()
        self.clock_ahead_us = clock_ahead_us(asked_us, moment.clock_us, answered_us)
        if abs(self.clock_ahead_us) > self._bound_us:
            if not self._is_clock_off:
                self._notice(
                    f"the clock of {server.name} is {self.clock_ahead_us} us ahead of this one, "
                    "more than max_clock_ahead_ms: heads go by this clock instead"
                )
            self._is_clock_off = True

    def take_moment(self) -> int:
        """The head that the moment gives once the log has reached it; 0 on a replica.

        What comes later may bear an earlier commit time (up to 0.1 s under load, or a whole
        statement on MariaDB): the decoder clamps it to this head. On a replica the clock says
        nothing about what the primary has committed.
        """
        moment, self.moment = self.moment, None
        if moment is None or self.is_replica:
            return 0
        return believed_us(moment.clock_us, now_us(), self._bound_us)

    def of_row(self, heartbeat_us: int) -> int:
        """The head that the last heartbeat row gives where a replica is read, else 0."""
        return min(heartbeat_us, now_us() + self._bound_us) if self.is_replica else 0


def clock_ahead_us(asked_us: int, server_us: int, answered_us: int) -> int:
    """How far a server's clock is ahead of the own one, at least; negative where it is behind.

    It was `server_us` there at some time between question and answer: what may have passed on the
    way is no difference between the clocks. Pure.
    """
    return max(0, server_us - answered_us) + min(0, server_us - asked_us)


def believed_us(server_us: int, own_us: int, bound_us: int) -> int:
    """The time that a head may promise: the server's clock, the own one where they are far apart.

    A head may be any time, for what comes later is clamped to it. But a server's clock that is
    far behind would hold back the merged stream, and one far ahead would put the shard's own
    records behind everybody else's. Pure.
    """
    return server_us if abs(server_us - own_us) <= bound_us else own_us


def now_us() -> int:
    """The own clock, in microseconds since the epoch."""
    return time.time_ns() // 1000
