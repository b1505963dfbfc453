"""What stops a reader, and what mends it."""

from event_token.errors import Halt, Retry


class PositionTooOld(Halt):
    """Raised when the log or its progress no longer reaches back to where the reader stands."""


class LogGap(Halt):
    """Raised when a `seq` is missing in a shard log: records have been lost."""


class LogRepeat(Halt):
    """Raised when a `seq` comes again in a shard log: records have been duplicated."""


class LogShrank(Halt):
    """Raised when a shard log or progress topic is gone, or ends before where the reader stands."""


class ProgressBroken(Halt):
    """Raised when progress records contradict each other or the rows they speak of."""


class RowImageMissing(Halt):
    """Raised when a key range cannot be filtered: no keyspace id, or a partial row image."""


class RowsNotReadable(Retry):
    """Raised when rows that progress has promised did not become readable in time."""


class BrokersUnreachable(Retry):
    """Raised when no broker has answered for longer than a reader waits."""


class StartNotReached(Retry):
    """Raised when a shard's log has not reached the time at which a reader is to start."""
