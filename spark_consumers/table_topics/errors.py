"""What stops a query that writes table topics."""

from event_token.errors import Halt


class ValueDoesNotFit(Halt):
    """Raised on a value that the chosen format cannot represent."""


class PartialRow(Halt):
    """Raised on a row image that lacks columns: a message has whole rows."""
