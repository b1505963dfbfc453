"""The errors of the sinks, beside those of `topics.errors`."""

from event_token.errors import Halt, Retry


class TargetConflict(Halt):
    """Raised when a batch would repeat changes in a sink's target or leave some out."""


class SameKeys(Halt):
    """Raised when a key keeps live rows on more than one shard, of which a target shows one."""


class ChangeLogConflict(Halt):
    """Raised when a commit would repeat changes of the Delta table or leave a hole in it."""


class LakeConflict(Halt):
    """Raised when another driver writes to a table of current rows: a change could be lost."""


class StaleBatch(Retry):
    """Raised when another program rewrote files of a table that a batch changes: run it again."""


class DatabaseRefuses(Halt):
    """Raised when a second database refuses a statement for a reason that only people can end."""


class DuplicateValue(DatabaseRefuses):
    """Raised when a unique index of a second database has a value already."""


class BadValue(Halt):
    """Raised on a value that the second database cannot hold."""


class ValueDoesNotFit(Halt):
    """Raised on a value that the chosen format cannot represent."""


class PartialRow(Halt):
    """Raised on a row image that lacks columns: a message has whole rows."""
