"""What is wrong with a filter rule."""

from event_token.errors import UsageError


class RuleError(UsageError):
    """Raised on a filter rule that cannot be applied; the caller says whose rule it is."""
