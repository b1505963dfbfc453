"""The producer's own errors, and the commands that get past a transaction that stops a shard.

Each error derives from a kind in `event_token.errors`. `Fenced`, which comes from Kafka, is in
`topics.kafka.errors`.
"""

from dataclasses import dataclass, field

from databases.errors import ServerLost, ServerRefused
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from topics.names import ShardTopics


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


class ClockUnknown(Retry):
    """Raised when nothing says how far this host's clock may be off."""


class StreamFailed(Rebuild):
    """Raised when a server cannot send its binlogs on: the next connect shows why, or fails too."""


class BetterServer(Rebuild):
    """Raised when another server should be followed: this one lags or is no longer usable."""


class PublisherSpent(Rebuild):
    """Raised when the Kafka producer must be replaced; the next one resumes from the log."""


class StopsBehindOthers(Rebuild):
    """Raised when a transaction stops the shard behind others that are not committed yet.

    The next session commits each transaction up to it, so that the log ends right before it.
    """

    def __init__(self, gtid: str, error: ShardstreamError) -> None:
        super().__init__(str(error))
        self.gtid = gtid
        self.error = error


class StopPassed(Rebuild):
    """Raised at a transaction that an operator's order passes; all before it is committed."""

    def __init__(self, gtid: str, error: ShardstreamError) -> None:
        super().__init__(str(error))
        self.gtid = gtid


class AnswerTooLate(Rebuild):
    """Raised when the rows so far can wait no longer for what is asked about a table.

    The next session goes on with the question where this one ends, so these are bounded by what is
    waited for.
    """


class TableLocked(Halt):
    """Raised when a lock keeps a table's definition from being asked for, for too long."""


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


@dataclass(slots=True)
class Findings:
    """Problems, for which a shard's producer is not started, and warnings for its operator."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def refused(problems: list[Problem]) -> ServerRefused:
    """One error that lists all problems of a preflight."""
    lines = [f"the preflight found {len(problems)} problem(s):", *(f"  {p}" for p in problems)]
    return ServerRefused("\n".join(lines))


def skip_advice(topics: ShardTopics, gtid: str, *, force: bool = False) -> str:
    """How to pass the transaction that stops the shard.

    `force`: another attempt may pass it, so that `skip` cannot see for itself that it stops.
    """
    option = " --force" if force else ""
    return (
        f"If nothing else helps, pass this transaction, whose changes will then be missing from "
        f"the log: shardstream skip {topics.keyspace} {topics.shard} --gtid {gtid}{option} "
        f"--reason TEXT (where many stop the shard, --until GTID or --table TABLE instead of "
        f"--gtid passes all)"
    )


def lost_advice(topics: ShardTopics, lost: str) -> str:
    """How to go on with a primary that lacks transactions which the log holds."""
    return (
        f"If the server is right, go on without them; a SKIP record shows it to readers: "
        f"shardstream skip {topics.keyspace} {topics.shard} --lost {lost} --reason TEXT"
    )


def start_over_advice(topics: ShardTopics) -> str:
    """How to go on where a server's binlogs lack what the log needs."""
    return (
        "Use a server whose binlogs have it, or start a new log: shardstream topics reset "
        f"{topics.keyspace} {topics.shard} --reason TEXT, then produce it again and copy its tables"
    )


def out_of_order_advice(topics: ShardTopics, gtid: str) -> str:
    """How to pass transactions of MariaDB whose numbers ran backwards."""
    return (
        "Pass them, with the first one behind them whose number is above the log's; the changes of "
        "all of them will then be missing from the log, and the SKIP record names them: "
        f"shardstream skip {topics.keyspace} {topics.shard} --gtid {gtid} --reason TEXT"
    )


def no_number_above(gtid: str) -> str:
    """What to do first where no transaction has a number above the log's yet."""
    return (
        "The server has given no number above the log's yet. First commit one harmless "
        "transaction with such a number (SET gtid_seq_no = NUMBER, in domain "
        f"{gtid.partition('-')[0]}). "
    )
