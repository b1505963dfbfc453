"""What a cache needs of its store: `Store` for clients, `FloorStore` for the invalidator.

A *node* is what keeps or loses its data together and has positions of its own: a group of buckets
on Redis, a server on memcached. All calls go to the primary of a node, and a node that does not
answer is not replaced by another one: StoreUnreachable. A write that finds no memory: StoreFull.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from caching.findings import Findings
from caching.protocol import Floor, Layout
from event_token import EventToken


class Pair(NamedTuple):
    """A bucket's floor and a key's slot as they were read together; None for what is not there.

    `slot` is what decisions are made of. `version` tells the store which contents of the slot are
    meant (a placeholder, a cas id); nobody else looks into it.
    """

    floor: bytes | None
    slot: bytes | None
    version: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A change, by its token, of the rows that a cache key is made of."""

    key: str
    token: EventToken


@dataclass(frozen=True, slots=True)
class Invalidated:
    """What an invalidation did.

    `closed` are the buckets without a floor, where nothing is a hit until one is made; `repeats`
    counts the buckets that were decided on again, because somebody wrote to them meanwhile.
    """

    floors_raised: int = 0
    values_removed: int = 0
    repeats: int = 0
    closed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to make floors: by bucket, what lies in the floor's place until it is made.

    Another process may have laid it there, and may be making the same floor: one of them does.
    """

    markers: Mapping[int, bytes]


class Store(Protocol):
    """A client's side of a store. Safe to use from several threads."""

    @property
    def layout(self) -> Layout:
        """The layout of the cache's keys."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes."""

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""

    def read(self, keys: Sequence[str]) -> list[Pair]:
        """Read floor and slot of each key, both of a key at once."""

    def read_stale(self, key: str) -> Pair:
        """Read a key's floor, and in place of its slot the value that was last removed from it."""

    def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        """Announce a fill before the database is read; return the pair to fill against.

        With `lease_ms` above 0 a placeholder takes the slot if it still is as it was `seen`, and
        the floor is read after it is there; None if somebody else was faster. Memcached always
        needs the placeholder, and keeps it for as long as a fill may take. Without a lease the
        other stores return `seen`.
        """

    def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """Write an entry if floor and slot are, byte for byte, as they were expected."""

    def read_again(self, key: str) -> Pair | None:
        """Return what a fill that lost may be checked against once more; None where it may not."""

    def release(self, key: str, prepared: Pair) -> None:
        """Take the placeholder of a fill that does not happen out of the slot."""

    def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `prepare`, `fill`, `read_again`, `release` or `position` with these arguments.

        At once where the store can. What raises may have been done in part.
        """

    def forget(self, keys: Sequence[str]) -> None:
        """Delete the slots of these keys; floors stay as they are."""

    def want_floors(self, buckets: Iterable[int]) -> None:
        """Ask the invalidator to make the floors of these buckets, which are missing."""

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Raise floors by the changes, then remove the values that do not hold them."""

    def position(self, node: str, key_range: str) -> bytes | None:
        """Return the position that the invalidator of a key range last published on a node."""

    def check(self) -> Findings:
        """Ask the servers what a preflight has to know."""

    def close(self) -> None:
        """Close all connections."""


class AsyncStore(Protocol):
    """`Store` for asyncio."""

    @property
    def layout(self) -> Layout:
        """The layout of the cache's keys."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes."""

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""

    async def read(self, keys: Sequence[str]) -> list[Pair]:
        """See `Store.read`."""

    async def read_stale(self, key: str) -> Pair:
        """See `Store.read_stale`."""

    async def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:
        """See `Store.prepare`."""

    async def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """See `Store.fill`."""

    async def read_again(self, key: str) -> Pair | None:
        """See `Store.read_again`."""

    async def release(self, key: str, prepared: Pair) -> None:
        """See `Store.release`."""

    async def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Store.together`."""

    async def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""

    async def want_floors(self, buckets: Iterable[int]) -> None:
        """See `Store.want_floors`."""

    async def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `Store.invalidate`."""

    async def position(self, node: str, key_range: str) -> bytes | None:
        """See `Store.position`."""

    async def check(self) -> Findings:
        """See `Store.check`."""

    async def close(self) -> None:
        """See `Store.close`."""


class FloorStore(Protocol):
    """The invalidator's side of a store: one connection per server, one thread.

    Every call but `resume` raises Reconnected when it would use a connection to a node on which
    `resume` has not read the position (rule 11); nothing was written on that node then. A call on
    several nodes that raises may have been carried out on others: every call may be repeated.
    """

    @property
    def layout(self) -> Layout:
        """The layout of the cache's keys."""

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes."""

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """Connect, and return the stored position of each node with a new connection.

        None: that node has no position (new, or flushed). Nodes whose connection is the one they
        were resumed on are left out.
        """

    def publish(self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]) -> (
        dict[str, bytes | None]
    ):  # fmt: skip
        """Replace positions by node, each `(seen, new)` if it still is what was seen.

        Return what is stored instead on the nodes where it was not.
        """

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Raise floors by the changes, then remove the values that do not hold them.

        A floor that finds no memory is deleted instead: its bucket is closed.
        """

    def change_floors(self, nodes: Iterable[str], change: Callable[[Floor], Floor]) -> int:
        """Replace every floor of the nodes by a compare-and-set; return how many changed.

        `change` may be called several times per floor. Missing floors stay missing, and claims
        are taken away.
        """

    def wanted(self) -> list[int]:
        """Take the buckets whose floors clients found missing, of all nodes."""

    def claim(self, buckets: Iterable[int]) -> Claim:
        """Mark the floors of these buckets that are missing as being made.

        The end of each log is asked for after this: an invalidation that is applied meanwhile
        takes the mark away, so no floor is made below a change that was applied (rule 9). A mark
        that another process has made is shared, for that process may have died.
        """

    def make_floors(self, claim: Claim, floor: Callable[[], Floor]) -> int:
        """Make a floor, each by its own call, in every bucket still claimed; return how many."""

    def tell_layout(self) -> None:
        """Store the layout where clients of any layout find it (`Layout.layout_key`)."""

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """Take or extend the lease of a key range, on the first node; False: another has it."""

    def close(self) -> None:
        """Close all connections."""
