"""The producer's own errors; each derives from a kind in `event_token.errors`.

`Fenced`, which comes from Kafka, is in `topics.kafka.errors`.
"""

from dataclasses import dataclass

from databases.errors import ServerLost, ServerRefused
from event_token.errors import Halt, Rebuild, ShardstreamError, UsageError


class BinlogPurged(UsageError):  # noqa: N818 - named by what happened
    """Raised when a server has purged binlogs that the log still needs."""


class ServerBehindLog(Halt):
    """Raised when the log holds transactions that a primary never executed."""


class ServerDiverged(Halt):
    """Raised when a server has transactions that neither the other servers nor the log have."""


class HistoryRewritten(Halt):
    """Raised when a server has another transaction under the GTID of the log's last one."""


class NumbersRanBackwards(Halt):
    """Raised when a MariaDB server has given numbers that are not above those the log holds."""


class WrongServer(Halt):
    """Raised when a server does not belong to the shard whose log it is to continue."""


class SameServerId(Halt):
    """Raised when another replication connection with the same server id took this one's place."""


class LogDisagrees(Halt):
    """Raised when shard log, progress topic and delivered offsets contradict one another."""


class ReplicaBehindLog(ServerLost):
    """Raised when a replica has not yet applied what the log holds."""


class StreamFailed(Rebuild):
    """Raised when a server cannot send its binlogs on: the next connect tells why, or fails too."""


class BetterServer(Rebuild):
    """Raised when another server should be followed: this one lags or is no longer usable."""


class PublisherSpent(Rebuild):
    """Raised when the Kafka producer must be replaced; the next one resumes from the log."""


class StopsBehindOthers(Rebuild):
    """Raised when a transaction stops the shard behind others that are not committed yet.

    The next session commits each transaction up to it, so that the log ends right before it.
    """

    def __init__(self, gtid: str, error: ShardstreamError) -> None:
        """Name the transaction, and what stops the shard there."""
        super().__init__(str(error))
        self.gtid = gtid
        self.error = error


class StopPassed(Rebuild):
    """Raised at a transaction that an operator's order passes; all before it is committed."""

    def __init__(self, gtid: str, error: ShardstreamError) -> None:
        """Name the transaction, and what would stop the shard there."""
        super().__init__(str(error))
        self.gtid = gtid


class TransactionTooLong(PublisherSpent):
    """Raised when a database transaction outlasts the brokers' transaction timeout."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and the statement or setting that fixes it.

    `passing`: the server does not answer now; another one may serve meanwhile.
    """

    what: str
    where: str
    fix: str
    passing: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. Fix: {self.fix}"


def refused(problems: list[Problem]) -> ServerRefused:
    """One error that lists all problems of a preflight."""
    lines = [f"the preflight found {len(problems)} problem(s):", *(f"  {p}" for p in problems)]
    return ServerRefused("\n".join(lines))
