"""The errors of caches and fresh reads."""

from event_token import EventToken
from event_token.errors import Rebuild, Retry, UsageError


class LayoutError(UsageError):
    """Raised on a number of buckets, a cache name or a list of nodes that cannot be used."""


class StoreExtraMissing(UsageError):  # noqa: N818 - what happened
    """Raised when a store's client library is missing, which an extra of shardstream installs."""


class StoreError(Retry):
    """A store did not do what it was asked; `node` names which. Clients read the database."""

    def __init__(self, node: str, message: str) -> None:
        """Keep the node's name for logs and metrics."""
        super().__init__(message)
        self.node = node


class StoreUnreachable(StoreError):  # noqa: N818 - what happened
    """Raised when a node does not answer in time, or has not a moment ago; nobody replaces it."""


class StoreFull(StoreError):  # noqa: N818 - what happened
    """Raised when a node has no memory left for a write (maxmemory with noeviction)."""


class Reconnected(Rebuild):
    """Raised by a `FloorStore` whose connection to a node is not the one it resumed on.

    The node may have come back older than it was (a promoted replica, a restored snapshot), and
    what was under way counts as not done: call `resume` and go on from the positions it returns.
    """

    def __init__(self, node: str) -> None:
        """Name the node."""
        super().__init__(f"cache node {node}: a new connection, its position must be read again")
        self.node = node


class Stale(Retry):
    """Raised when no server of a shard holds a change that a read asked for.

    `wanted` is the change's token. `is_lost`: the primary itself lacks it, as it does when a
    failover lost the change. Otherwise the same read may succeed later.
    """

    def __init__(self, message: str, wanted: EventToken, *, is_lost: bool) -> None:
        """Keep the token and the verdict."""
        super().__init__(message)
        self.wanted = wanted
        self.is_lost = is_lost
