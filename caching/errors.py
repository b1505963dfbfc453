"""The errors of caches and fresh reads, and what their preflights find."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

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
    calls that were under way count as not done: call `resume`, and go on from its positions.
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


class TooOld(Retry):
    """Raised when no server of a shard proves that its rows are as new as a read demands.

    The same read may succeed later, or with more `wait_s`.
    """


class NotServing(Retry):
    """Raised when a shard has ended by a reshard, or has not begun, and no other is known yet.

    The same read of the keyspace succeeds once the switch is finished or cancelled.
    """


@dataclass(slots=True)
class CacheFindings:
    """Problems, with which nothing should start, and warnings. `layout`: see `CacheLayout.text`."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    layout: str | None = None

    def add(self, other: "CacheFindings") -> Self:
        """Add the findings of another part."""
        self.problems += other.problems
        self.warnings += other.warnings
        return self

    def refuse(self, what: str) -> None:
        """Raise one UsageError that lists all problems, if there are any."""
        if self.problems:
            lines = "\n".join(f"  {problem}" for problem in self.problems)
            raise UsageError(f"{what}: {len(self.problems)} problem(s)\n{lines}")


def version_number(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 1.6.18, up to the first part that is none."""
    return tuple(_numbers(text.split(".")))


def _numbers(parts: Iterable[str]) -> Iterable[int]:
    for part in parts:
        if not part.isdecimal():
            return
        yield int(part)
