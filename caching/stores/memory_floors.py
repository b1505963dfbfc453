"""The invalidator's side of a store in memory."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from caching.errors import Reconnected
from caching.protocol import Floor, Layout
from caching.stores.memory import MemoryNode, MemoryStore
from caching.stores.store import Claim, Invalidated, KeyChange
from caching.stores.swaps import CLAIM_BYTE, CLAIM_NONCE_BYTES, by_bucket


class MemoryFloors:
    """A `FloorStore` over the data of a `MemoryStore`."""

    def __init__(self, store: MemoryStore) -> None:
        """Nothing is resumed yet."""
        self._store = store
        self._resumed: dict[str, int] = {}

    @property
    def layout(self) -> Layout:
        """The layout of the cache's keys."""
        return self._store.layout

    @property
    def nodes(self) -> Sequence[str]:
        """The names of all nodes."""
        return self._store.nodes

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return self._store.node_of(bucket)

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """Return the stored position of each node with a new connection."""
        found: dict[str, bytes | None] = {}
        with self._store.lock:
            for name, node in self._store.memory.items():
                if self._resumed.get(name) != node.connections:
                    self._resumed[name] = node.connections
                    found[name] = node.positions.get(key_range)
        return found

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """Replace positions that are as they were seen; return the others as they are."""
        lost: dict[str, bytes | None] = {}
        with self._store.lock:
            for name, (seen, new) in positions.items():
                stored = self._node(name).positions.get(key_range)
                if stored == seen:
                    self._node(name).positions[key_range] = new
                else:
                    lost[name] = stored
        return lost

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """Raise floors by the changes, and remove the values that do not hold them."""
        wanted = list(changes)
        with self._store.lock:
            for bucket in by_bucket(self.layout, wanted):
                self._node(self.node_of(bucket))
            return self._store.invalidate(wanted)

    def change_floors(self, nodes: Iterable[str], change: Callable[[Floor], Floor]) -> int:
        """Replace every floor of the nodes; return how many changed."""
        changed = 0
        with self._store.lock:
            for floors in [self._node(name).floors for name in nodes]:
                for bucket, stored in list(floors.items()):
                    floor = Floor.parse(stored)
                    if floor is None:  # a claim, whose ends may lack the change
                        del floors[bucket]
                    else:
                        floors[bucket] = change(floor).to_bytes()
                        changed += floors[bucket] != stored
        return changed

    def wanted(self) -> list[int]:
        """Take the buckets whose floors clients found missing."""
        with self._store.lock:
            found = sorted({bucket for name in self.nodes for bucket in self._node(name).wanted})
            for node in self._store.memory.values():
                node.wanted.clear()
        return found

    def claim(self, buckets: Iterable[int]) -> Claim:
        """Mark the missing floors as being made."""
        marker = bytes([CLAIM_BYTE]) + os.urandom(CLAIM_NONCE_BYTES)
        markers = {}
        with self._store.lock:
            for bucket in buckets:
                floors = self._node(self.node_of(bucket)).floors
                if Floor.parse(floors.get(bucket)) is None:
                    markers[bucket] = floors.setdefault(bucket, marker)
        return Claim(markers)

    def make_floors(self, claim: Claim, floor: Callable[[], Floor]) -> int:
        """Make the floors that are still claimed; return how many."""
        made = 0
        with self._store.lock:
            for bucket, marker in claim.markers.items():
                floors = self._node(self.node_of(bucket)).floors
                if floors.get(bucket) == marker:
                    floors[bucket] = floor().to_bytes()
                    made += 1
        return made

    def tell_layout(self) -> None:
        """Store nothing: whoever shares the memory has its layout."""

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """Take or extend the lease of a key range on the first node."""
        with self._store.lock:
            now = self._store.clock()
            leases = self._node(self.nodes[0]).leases
            present, until = leases.get(key_range, (holder, now))
            if present != holder and until >= now:
                return False
            leases[key_range] = (holder, now + lease_ms / 1000)
            return True

    def close(self) -> None:
        """Keep everything: there are no connections."""

    def _node(self, name: str) -> MemoryNode:
        node = self._store.memory[name]
        if self._resumed.get(name) != node.connections:
            raise Reconnected(name)
        return node
