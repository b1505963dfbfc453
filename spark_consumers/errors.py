"""What stops a Spark reader or the change log."""

from event_token.errors import Halt, UsageError


class BrokenLog(Halt):
    """Raised when records of a shard log are missing, repeated or cannot be read."""


class UnknownSchema(Halt):
    """Raised on a record whose schema this release does not know."""


class ShapeConflict(UsageError):  # noqa: N818 - named by what conflicts
    """Raised when another version of a table does not fit the columns of the query."""


class ChangeLogConflict(Halt):
    """Raised when a commit would repeat changes of the Delta table or leave a hole in it."""
