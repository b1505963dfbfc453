"""The errors of caches and fresh reads."""

from event_token.errors import UsageError


class LayoutError(UsageError):
    """Raised on a number of buckets, a cache name or a list of nodes that cannot be used."""
