"""The producer's own errors, each of one kind of `event_token.errors`.

`Fenced` is raised too; it comes from Kafka and lives in `topics.kafka.errors`.
"""

from dataclasses import dataclass

from databases.errors import ServerLost, ServerRefused
from event_token.errors import Halt, Rebuild, UsageError


class BinlogPurged(UsageError):  # noqa: N818 - named by what happened
    """Raised when a server no longer has what the log needs: name another server or start."""


class ServerBehindLog(Halt):
    """Raised when the log holds transactions that a primary does not have."""


class ServerDiverged(Halt):
    """Raised when a server has transactions that no other server or the log has beside its own."""


class SameServerId(Halt):
    """Raised when another replication connection with the same server id ended this one."""


class LogDisagrees(Halt):
    """Raised when the shard log and its progress topic, or delivered offsets, contradict."""


class ReplicaBehindLog(ServerLost):
    """Raised when a replica does not yet have what the log holds; wait, or take another server."""


class BetterServer(Rebuild):
    """Raised when another server should be followed: this one lags, or is no longer sound."""


class PublisherSpent(Rebuild):
    """Raised when the Kafka producer must not be used again; a new one starts from the log."""


class TransactionTooLong(PublisherSpent):
    """Raised when a transaction of the database outlasts what brokers allow one of Kafka's."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and the statement or setting that mends it.

    `passing`: a server that does not answer now; another one may do meanwhile.
    """

    what: str
    where: str
    mend: str
    passing: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.what}. Mend: {self.mend}"


def refused(problems: list[Problem]) -> ServerRefused:
    """One error that lists all problems of a preflight."""
    lines = [f"the preflight found {len(problems)} problem(s):", *(f"  {p}" for p in problems)]
    return ServerRefused("\n".join(lines))
