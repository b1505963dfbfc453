"""What stops a reshard, and what mends it."""

from event_token.errors import Halt, Rebuild, UsageError


class ServerGone(Rebuild):
    """Raised when a database server is lost or undoes a transaction: connect again, go on."""


class ServerRefuses(UsageError):  # noqa: N818 - named by what happened
    """Raised when a database server refuses the account, its rights or its certificate."""


class DoesNotApply(Halt):
    """Raised when a record of a source cannot be applied to the target as it stands."""


class DefinitionChanged(Halt):
    """Raised at a DDL statement on a resharded table: the operator must say that targets agree."""


class CheckpointMoved(Halt):
    """Raised when somebody else moved a target's checkpoint: another applier is at work."""
