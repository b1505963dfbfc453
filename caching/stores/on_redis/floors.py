"""The invalidator's side of a store on Redis or Valkey."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from caching.errors import StoreError
from caching.protocol import Floor, Layout
from caching.stores.circuit import FLOORS_TIMEOUT_MS
from caching.stores.known_floors import KnownFloors
from caching.stores.on_redis import steps
from caching.stores.on_redis.pinned_servers import PinnedServers
from caching.stores.on_redis.scripts import LEASE, REPLACE, SWAP_LOST, Call
from caching.stores.on_redis.steps import ROUNDS_MAX
from caching.stores.on_redis.store import NODES
from caching.stores.store import Claim, Invalidated, KeyChange
from caching.stores.swaps import CLAIM_BYTE, CLAIM_NONCE_BYTES, Swap

# As many as there are buckets by default: some tens of MB.
FLOORS_KNOWN = 16_384
# Wanted buckets that one call takes of a group; the others are taken by the next call.
WANTED_MAX = 1_000


class RedisFloors:
    """A `FloorStore` whose nodes are the groups of buckets."""

    def __init__(
        self,
        layout: Layout,
        url: str,
        *,
        timeout_ms: int = FLOORS_TIMEOUT_MS,
        stale_ok_s: int = 0,
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL that cannot be used."""
        self.layout = layout
        self.nodes: Sequence[str] = NODES
        self._stale_ok_s = stale_ok_s
        self._known = KnownFloors(FLOORS_KNOWN)
        self._servers = PinnedServers(layout, url, timeout_ms=timeout_ms)

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return NODES[self.layout.group(bucket)]

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """See `FloorStore.resume`."""
        calls = [
            Call(group, ("GET", self.layout.position_key(group, key_range)))
            for group in range(len(NODES))
        ]
        return {str(group): reply for group, reply in self._servers.resume(calls).items()}

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """See `FloorStore.publish`."""
        calls = []
        for node, (seen, new) in positions.items():
            key = self.layout.position_key(int(node), key_range)
            calls.append(REPLACE.call(int(node), (key,), (seen or b"", new)))
        replies = self._servers.run(calls)
        return {
            node: reply[0] for node, reply in zip(positions, replies, strict=True) if reply != 1
        }

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        return self._servers.carry_out(
            steps.invalidate(self.layout, changes, self._stale_ok_s, self._known)
        )

    def change_floors(self, nodes: Iterable[str], change: Callable[[Floor], Floor]) -> int:
        """See `FloorStore.change_floors`."""
        groups = {int(node) for node in nodes}
        waiting = [each for each in range(self.layout.buckets) if self.layout.group(each) in groups]
        changed = 0
        for _ in range(ROUNDS_MAX):
            swaps = []
            for bucket, stored in zip(waiting, self._floors(waiting), strict=True):
                if stored is not None:
                    floor = Floor.parse(stored)
                    # A claim goes: its maker may have asked for ends that lack the change.
                    new = None if floor is None else change(floor).to_bytes()
                    swaps.append(Swap(bucket, stored, new, (), {}))
            swaps = [swap for swap in swaps if swap.floor != swap.seen]
            replies = self._servers.run([steps.swap_call(self.layout, swap) for swap in swaps])
            answered = list(zip(swaps, replies, strict=True))
            waiting = [swap.bucket for swap, reply in answered if reply == SWAP_LOST]
            changed += len([1 for swap, reply in answered if swap.floor and reply != SWAP_LOST])
            if not waiting:
                return changed
        raise StoreError(self.node_of(waiting[0]), f"floor {waiting[0]} changed all the time")

    def wanted(self) -> list[int]:
        """See `FloorStore.wanted`."""
        keys = [self.layout.wanted_key(group) for group in range(len(NODES))]
        replies = self._servers.run(
            [Call(group, ("SPOP", key, WANTED_MAX)) for group, key in enumerate(keys)]
        )
        named = [int(bucket) for bucket in chain(*replies)]
        return [bucket for bucket in named if 0 <= bucket < self.layout.buckets]

    def claim(self, buckets: Iterable[int]) -> Claim:
        """See `FloorStore.claim`."""
        asked = list(buckets)
        marker = bytes([CLAIM_BYTE]) + os.urandom(CLAIM_NONCE_BYTES)
        missing = {
            bucket: stored
            for bucket, stored in zip(asked, self._floors(asked), strict=True)
            if Floor.parse(stored) is None
        }
        shared = {bucket: stored for bucket, stored in missing.items() if stored is not None}
        added = self._replace(dict.fromkeys(missing.keys() - shared.keys(), (None, marker)))
        return Claim(shared | dict.fromkeys(added, marker))

    def make_floors(self, claim: Claim, floor: Callable[[], Floor]) -> int:
        """See `FloorStore.make_floors`."""
        made = {bucket: (marker, floor().to_bytes()) for bucket, marker in claim.markers.items()}
        return len(self._replace(made))

    def tell_layout(self) -> None:
        """See `FloorStore.tell_layout`."""
        self._servers.run([Call(0, ("SET", self.layout.layout_key(), self.layout.text))])

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """See `FloorStore.lease`."""
        key = self.layout.lease_key(key_range)
        return self._servers.run([LEASE.call(0, (key,), (holder, lease_ms))]) == [1]

    def close(self) -> None:
        """See `FloorStore.close`."""
        self._servers.close()

    def _floors(self, buckets: Sequence[int]) -> list[bytes | None]:
        return self._servers.run(
            [Call(self.layout.group(each), ("GET", self.layout.floor_key(each)))
             for each in buckets]
        )  # fmt: skip

    def _replace(self, floors: Mapping[int, tuple[bytes | None, bytes]]) -> list[int]:
        """Replace what is still as it was seen; return the buckets where it was."""
        calls = [
            REPLACE.call(
                self.layout.group(bucket), (self.layout.floor_key(bucket),), (seen or b"", new)
            )
            for bucket, (seen, new) in floors.items()
        ]
        replies = self._servers.run(calls)
        return [bucket for bucket, reply in zip(floors, replies, strict=True) if reply == 1]
