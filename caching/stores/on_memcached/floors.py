"""The invalidator's side of a store on memcached."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from caching.errors import StoreError
from caching.protocol import Floor, Layout
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.stores.circuit import FLOORS_TIMEOUT_MS
from caching.stores.on_memcached.invalidation import (
    FOR_EVER,
    ROUNDS_MAX,
    invalidate,
    replace_floor,
)
from caching.stores.on_memcached.names import addresses
from caching.stores.on_memcached.nodes import PinnedNode
from caching.stores.store import Claim, Invalidated, KeyChange
from caching.stores.swaps import CLAIM_BYTE, CLAIM_NONCE_BYTES

# Floors per request.
FLOORS_MAX = 200


class MemcachedFloors:
    """A `FloorStore` whose nodes are memcached servers."""

    def __init__(
        self,
        cache: str,
        url: str,
        buckets: int = BUCKETS_DEFAULT,
        *,
        timeout_ms: int = FLOORS_TIMEOUT_MS,
        stale_ok_s: int = 0,
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL or name that cannot be used."""
        self.nodes: Sequence[str] = addresses(url)
        self.layout = Layout(cache, buckets, self.nodes)
        self._stale_ok_s = stale_ok_s
        self._nodes = {name: PinnedNode(name, timeout_ms=timeout_ms) for name in self.nodes}

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return self.nodes[bucket % len(self.nodes)]

    def resume(self, key_range: str) -> dict[str, bytes | None]:
        """See `FloorStore.resume`."""
        name = self.layout.position_key(0, key_range)
        found = {node.name: node.resume(name) for node in self._nodes.values()}
        return {node: stored for node, (is_new, stored) in found.items() if is_new}

    def publish(
        self, key_range: str, positions: Mapping[str, tuple[bytes | None, bytes]]
    ) -> dict[str, bytes | None]:
        """See `FloorStore.publish`."""
        name = self.layout.position_key(0, key_range)
        lost: dict[str, bytes | None] = {}
        for node, (seen, new) in positions.items():
            with self._nodes[node].client() as client:
                stored, cas = client.gets(name, default=None, cas_default=None)
                if stored == seen and (
                    client.add(name, new, FOR_EVER, noreply=False)
                    if seen is None
                    else client.cas(name, new, cas, FOR_EVER)
                ):
                    continue
                lost[node] = client.get(name)
        return lost

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `FloorStore.invalidate`."""
        return invalidate(self.layout, list(self._nodes.values()), changes, self._stale_ok_s)

    def change_floors(self, nodes: Iterable[str], change: Callable[[Floor], Floor]) -> int:
        """See `FloorStore.change_floors`."""
        changed = 0
        for node in nodes:
            waiting = [each for each in range(self.layout.buckets) if self.node_of(each) == node]
            for at in range(0, len(waiting), FLOORS_MAX):
                changed += self._change(self._nodes[node], waiting[at : at + FLOORS_MAX], change)
        return changed

    def wanted(self) -> list[int]:
        """See `FloorStore.wanted`."""
        name = self.layout.wanted_key(0)
        found: set[int] = set()
        for node in self._nodes.values():
            with node.client() as client:
                stored, cas = client.gets(name, default=None, cas_default=None)
                # Who appends meanwhile makes this fail: the list is taken by the next call.
                if stored and client.cas(name, b"", cas, FOR_EVER):
                    found |= {int(each) for each in stored.split(b",") if each.isdigit()}
        return sorted(bucket for bucket in found if bucket < self.layout.buckets)

    def claim(self, buckets: Iterable[int]) -> Claim:
        """See `FloorStore.claim`."""
        marker = bytes([CLAIM_BYTE]) + os.urandom(CLAIM_NONCE_BYTES)
        markers = {}
        for bucket in buckets:
            name = self.layout.floor_key(bucket)
            with self._nodes[self.node_of(bucket)].client() as client:
                added = client.add(name, marker, FOR_EVER, noreply=False)
                stored = marker if added else client.get(name)
            if stored is not None and Floor.parse(stored) is None:
                markers[bucket] = stored
        return Claim(markers)

    def make_floors(self, claim: Claim, floor: Callable[[], Floor]) -> int:
        """See `FloorStore.make_floors`."""
        made = 0
        for bucket, marker in claim.markers.items():
            name = self.layout.floor_key(bucket)
            with self._nodes[self.node_of(bucket)].client() as client:
                stored, cas = client.gets(name, default=None, cas_default=None)
                if stored == marker:
                    made += bool(client.cas(name, floor().to_bytes(), cas, FOR_EVER))
        return made

    def tell_layout(self) -> None:
        """See `FloorStore.tell_layout`; on every server, for lists of servers may differ."""
        for node in self._nodes.values():
            with node.client() as client:
                client.set(self.layout.layout_key(), self.layout.text, FOR_EVER, noreply=False)

    def lease(self, key_range: str, holder: bytes, lease_ms: int) -> bool:
        """See `FloorStore.lease`; memcached counts whole seconds."""
        name, lease_s = self.layout.lease_key(key_range), -(-lease_ms // 1000)
        with self._nodes[self.nodes[0]].client() as client:
            if client.add(name, holder, lease_s, noreply=False):
                return True
            stored, cas = client.gets(name, default=None, cas_default=None)
            return stored == holder and bool(client.cas(name, holder, cas, lease_s))

    def close(self) -> None:
        """See `FloorStore.close`."""
        for node in self._nodes.values():
            node.close()

    def _change(
        self, node: PinnedNode, waiting: list[int], change: Callable[[Floor], Floor]
    ) -> int:
        changed = 0
        names = {self.layout.floor_key(bucket) for bucket in waiting}
        for _ in range(ROUNDS_MAX):
            lost = set()
            with node.client() as client:
                for name, (seen, cas) in client.gets_many(sorted(names)).items():
                    floor = Floor.parse(seen)
                    if floor is None:  # a claim, whose ends may lack the change
                        client.delete(name, noreply=False)
                        continue
                    new = change(floor).to_bytes()
                    if new != seen and not replace_floor(node, client, name, new, cas):
                        lost.add(name)
                    changed += new != seen and name not in lost
            if not lost:
                return changed
            names = lost
        raise StoreError(node.name, f"floor {min(names)} changed all the time")
