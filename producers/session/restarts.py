"""Counts sessions that end in one place, and says when another one would not help. Pure."""

from dataclasses import dataclass
from typing import Final

from databases.errors import LoginRefused, ServerLost
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.copy.errors import RowNotCopied
from producers.decoder.errors import RolledBack
from producers.errors import StopsBehindOthers, TransactionTooLong
from producers.session.waiting import AWAY_S_MAX, backoff_s
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import TopicMissing

# Sessions that end without getting on: the next one would end likewise.
RESTARTS_IN_PLACE_MAX: Final = 10
# The brokers may have ended the first one by themselves.
TOO_LONG_IN_PLACE_MAX: Final = 2
# Servers lock an account after some refused logins in a row, and none passes within seconds.
LOGIN_PAUSE_S: Final = 10.0
# A session that has published rows, and has lasted this long, has got on: a copy may take hours on
# a server on which nothing else happens.
LASTS_S: Final = 60.0
# What passes by itself has passed after this many restarts; operators see the others.
RESTARTS_SHOWN_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Ended:
    """How far a session came that a fault has ended.

    `position`: the last committed one, "" if none was known. `streams`: it had opened its stream.
    `is_live`: it had reached what the server had executed. `rows`: committed. `lasted_s`: since it
    began.
    """

    position: str
    streams: bool
    is_live: bool
    rows: int
    lasted_s: float


class Restarts:
    """The sessions that have ended since the log last got on.

    `position`: where the log is. `count`: how many sessions have ended there.
    """

    def __init__(self, now_s: float) -> None:
        """No session has ended. Times are monotonic."""
        self.position = ""
        self.count = 0
        self._usable_s = now_s  # when a server was last seen to work
        self._is_outage = False  # the last one ended because none does
        self._faulty = 0  # those that no outage has ended
        self._too_long = 0
        self._answered: set[str] = set()  # what the next session does otherwise

    def add(self, fault: ShardstreamError, ended: Ended, now_s: float) -> None:
        """Count a session that a fault has ended, unless the next one cannot end likewise."""
        if ended.streams:
            self._usable_s = now_s
        has_moved = ended.position not in {"", self.position}
        if has_moved or ended.is_live or (ended.rows and ended.lasted_s >= LASTS_S):
            self.position = ended.position
            self.count = self._faulty = self._too_long = 0
            self._answered.clear()
        answer = _answer(fault)
        if answer and answer not in self._answered:
            self._answered.add(answer)
            return
        self.count += 1
        self._is_outage = isinstance(fault, ServerLost | LoginRefused) and not ended.streams
        self._faulty += not self._is_outage
        self._too_long += isinstance(fault, TransactionTooLong)

    def away_s(self, now_s: float) -> float:
        """For how long no server could be used; 0 where that is not what ends sessions."""
        return now_s - self._usable_s if self._is_outage else 0.0

    def are_enough(self, now_s: float) -> bool:
        """Whether another session would not help."""
        if self._is_outage:
            return self.away_s(now_s) > AWAY_S_MAX
        return self._faulty > RESTARTS_IN_PLACE_MAX or self._too_long >= TOO_LONG_IN_PLACE_MAX

    def pause_s(self, fault: ShardstreamError) -> float:
        """How long to wait before the next session."""
        if isinstance(fault, LoginRefused):
            return LOGIN_PAUSE_S
        return backoff_s(self.count) if self.count else 0.0


def may_pass(fault: ShardstreamError, *, has_streamed: bool) -> bool:
    """Whether another session may succeed.

    A password that is refused at the start is a wrong one; one that has worked was changed.
    """
    if isinstance(fault, LoginRefused):
        return has_streamed
    return isinstance(fault, Rebuild | Retry | TopicMissing | NoBrokerAnswers)


def _answer(fault: ShardstreamError) -> str:
    """What the next session does otherwise after this fault, "" if it does the same."""
    if isinstance(fault, RolledBack):
        return f"without the rows of {fault.gtid}"
    if isinstance(fault, StopsBehindOthers):
        return f"alone up to {fault.gtid}"
    if isinstance(fault, RowNotCopied):
        return f"without copy {fault.copy_id}"
    return ""
