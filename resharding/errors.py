"""What stops a reshard."""

from event_token.errors import Halt, TakenOver, UsageError


class ShardNotListed(UsageError):  # noqa: N818 - named by what happened
    """Raised when the settings do not have a shard of a reshard, or no longer."""


class DoesNotApply(Halt):
    """Raised when a source's record cannot be applied to the target as it is."""


class DefinitionChanged(Halt):
    """Raised on DDL for a resharded table, until the operator confirms that targets match."""


class TransactionSkipped(Halt):
    """Raised on a SKIP record, until the operator confirms that targets and sources agree."""


class CheckpointMoved(TakenOver):
    """Raised when something else moved a target's checkpoint: another applier is running."""
