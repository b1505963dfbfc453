"""What stops a reshard, and what mends it."""

from event_token.errors import Halt


class DoesNotApply(Halt):
    """Raised when a record of a source cannot be applied to the target as it stands."""


class DefinitionChanged(Halt):
    """Raised at a DDL statement on a resharded table: the operator must say that targets agree."""


class CheckpointMoved(Halt):
    """Raised when somebody else moved a target's checkpoint: another applier is at work."""
