"""The errors of caches and fresh reads."""

from event_token.errors import Halt, Retry, UsageError


class LayoutError(UsageError):
    """Raised on a number of buckets, a cache name or a list of nodes that cannot be used."""


class MissingColumn(Halt):
    """Raised when a row image lacks a column that the mapping of rows to cache keys reads."""


class StoreUnreachable(Retry):
    """Raised when a node of the store does not answer; it is never replaced by another one."""
