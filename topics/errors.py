"""The errors of `topics`, under the tree of `event_token.errors`.

Kafka's own errors are mapped to the tree by `topics.kafka.errors`.
"""

from collections.abc import Sequence

from event_token.errors import Halt, Rebuild, Retry, UsageError


class NoBrokerAnswers(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when no broker answers a command's first question; a producer waits for one."""


class HiddenValue(UsageError):  # noqa: N818 - named by what would go wrong
    """Raised where NULL would stand for an absent column or invalid date, and no column says so."""


class SchemaRefused(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when a registry's rule of compatibility refuses a schema."""


class ShapeConflict(UsageError):  # noqa: N818 - named by what conflicts
    """Raised when another version of a table does not fit the columns of the query."""


class WrongTopic(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when topics exist with other settings; `problems` lists all, each with its fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("topics have the wrong settings:\n" + "\n".join(problems))


class BrokersUnreachable(Retry):
    """Raised when no broker has answered for longer than a reader waits."""


class RowsNotReadable(Retry):
    """Raised when rows that progress has announced did not become readable in time."""


class StartNotReached(Retry):
    """Raised when a shard's log has not reached the time at which a reader is to start."""


class TopologyChanged(Retry):
    """Raised when another writer changed the topology: read it again, and decide again."""


class ReaderClosed(Rebuild):
    """Raised in a read that another thread ends, and by an iteration that begins after `close`."""


class CannotApply(Halt):
    """Raised on a change that cannot be applied to a table, because the log has too little."""


class CorruptRecord(Halt):
    """Raised on bytes that are not a record of their topic; names topic and offset."""


class UnknownEnvelope(Halt):
    """Raised on a record whose schema this release does not read: a newer one wrote it."""


class LogGap(Halt):
    """Raised when a `seq` is missing in a shard log: records have been lost."""


class LogRepeat(Halt):
    """Raised when a `seq` comes again in a shard log: records have been duplicated."""


class WrongPosition(UsageError):  # noqa: N818 - named by what is wrong
    """Raised when a position is of other shards or the future, or not one of these logs."""


class LogShrank(Halt):
    """Raised when a shard log or progress topic is gone, or ends before the reader's position."""


class PositionTooOld(Halt):
    """Raised when the log or its progress no longer reaches back to the reader's position."""


class ProgressBroken(Halt):
    """Raised when progress records contradict each other or the rows that they describe."""


class RowImageMissing(Halt):
    """Raised when rows cannot be filtered: no keyspace id, or a partial row image."""
