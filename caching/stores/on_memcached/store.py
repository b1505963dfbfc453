"""A client's store on memcached."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from caching.findings import Findings, version_number
from caching.protocol import Layout, Placeholder
from caching.protocol.entry import PLACEHOLDER_NONCE_BYTES
from caching.protocol.layout import BUCKETS_DEFAULT
from caching.stores.circuit import OPEN_S, TIMEOUT_MS
from caching.stores.on_memcached.invalidation import invalidate
from caching.stores.on_memcached.names import addresses, slot_name, stale_name
from caching.stores.on_memcached.nodes import PooledNode
from caching.stores.store import Invalidated, KeyChange, Pair

# A fill that takes longer finds no placeholder and is not written; one whose process dies keeps
# others from the slot for as long, unless they take it over.
PLACEHOLDER_S = 10
# Memcached takes a longer time for a date.
TTL_S_MAX = 30 * 24 * 3600
# Immediately expired: what `cas` can do that `delete` cannot.
EXPIRED = -1
# Older ones are in no distribution that is still maintained.
VERSION_MIN = (1, 4, 14)
# Names per request: a request of some 20 kB.
KEYS_MAX = 100


class MemcachedStore:
    """A `Store` whose nodes are memcached servers; the buckets are spread over them in turn.

    `url`: `memcached://a:11211,b:11211`. Another list of servers is another, empty cache.
    """

    def __init__(
        self,
        cache: str,
        url: str,
        buckets: int = BUCKETS_DEFAULT,
        *,
        timeout_ms: int = TIMEOUT_MS,
        open_s: float = OPEN_S,
        stale_ok_s: int = 0,
    ) -> None:
        """Connect to nothing yet. LayoutError on a URL or name that cannot be used."""
        self.nodes: Sequence[str] = addresses(url)
        self.layout = Layout(cache, buckets, self.nodes)
        self._stale_ok_s = stale_ok_s
        self._nodes = [
            PooledNode(name, timeout_ms=timeout_ms, open_s=open_s) for name in self.nodes
        ]

    def node_of(self, bucket: int) -> str:
        """Return the node of a bucket."""
        return self.nodes[bucket % len(self.nodes)]

    def read(self, keys: Sequence[str]) -> list[Pair]:
        """See `Store.read`: floor and slot in one request."""
        found: dict[str, Pair] = {}
        for number, node in enumerate(self._nodes):
            own = [key for key in keys if self.layout.bucket(key) % len(self._nodes) == number]
            for at in range(0, len(own), KEYS_MAX):
                part = own[at : at + KEYS_MAX]
                names = [name for key in part for name in self._names(key)]
                with node.client() as client:
                    stored = client.gets_many(names)
                found |= {key: self._pair(key, stored) for key in part}
        return [found[key] for key in keys]

    def read_stale(self, key: str) -> Pair:
        """See `Store.read_stale`."""
        floor, name = self.layout.floor_key(self.layout.bucket(key)), stale_name(self.layout, key)
        before = slot_name(self.layout, key)[1]
        with self._node(key).client() as client:
            stored = client.get_many([floor, name])
        slot = stored.get(name, b"")
        own = slot[len(before) :] if slot.startswith(before) else b""
        return Pair(stored.get(floor), own or None)

    def prepare(self, key: str, seen: Pair, lease_ms: int) -> Pair | None:  # noqa: ARG002 - see Store
        """See `Store.prepare`: the placeholder first, then the floor."""
        name, before = slot_name(self.layout, key)
        placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
        with self._node(key).client() as client:
            if seen.version is None:
                put = client.add(name, before + placeholder, PLACEHOLDER_S, noreply=False)
            else:
                put = client.cas(name, before + placeholder, seen.version, PLACEHOLDER_S)
            if not put:
                return None
            present = self._pair(key, client.gets_many(list(self._names(key))))
        if present.slot != placeholder:
            return None
        return Pair(present.floor, seen.slot, present.version)

    def fill(self, key: str, expected: Pair, entry: bytes, ttl_ms: int) -> bool:
        """See `Store.fill`: over the placeholder that the fill was prepared with."""
        if expected.version is None:
            return False
        name, before = slot_name(self.layout, key)
        ttl_s = min(-(-ttl_ms // 1000), TTL_S_MAX)
        with self._node(key).client() as client:
            return bool(client.cas(name, before + entry, expected.version, ttl_s))

    def read_again(self, key: str) -> Pair | None:  # noqa: ARG002 - see Store
        """Return None: the database must be read again, behind another placeholder."""
        return None

    def release(self, key: str, prepared: Pair) -> None:
        """See `Store.release`."""
        if prepared.version is not None:
            with self._node(key).client() as client:
                client.cas(slot_name(self.layout, key)[0], b"", prepared.version, EXPIRED)

    def together(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """See `Store.together`: one after the other."""
        return [getattr(self, method)(*each) for each in arguments]

    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        for number, node in enumerate(self._nodes):
            own = [key for key in keys if self.layout.bucket(key) % len(self._nodes) == number]
            names = [slot_name(self.layout, key)[0] for key in own]
            if self._stale_ok_s:
                names += [stale_name(self.layout, key) for key in own]
            if names:
                with node.client() as client:
                    client.delete_many(names, noreply=False)

    def want_floors(self, buckets: Iterable[int]) -> None:
        """See `Store.want_floors`: appended to a list on the node."""
        name, wanted = self.layout.wanted_key(0), set(buckets)
        for number, node in enumerate(self._nodes):
            own = [each for each in wanted if each % len(self._nodes) == number]
            text = "".join(f"{bucket}," for bucket in own)
            if text:
                with node.client() as client:
                    if not client.append(name, text, noreply=False):
                        client.add(name, text, noreply=False)

    def invalidate(self, changes: Iterable[KeyChange]) -> Invalidated:
        """See `Store.invalidate`."""
        return invalidate(self.layout, self._nodes, changes, self._stale_ok_s)

    def position(self, node: str, key_range: str) -> bytes | None:
        """See `Store.position`."""
        with self._nodes[self.nodes.index(node)].client() as client:
            stored: bytes | None = client.get(self.layout.position_key(0, key_range))
        return stored

    def check(self) -> Findings:
        """See `Store.check`."""
        found = Findings()
        for node in self._nodes:
            with node.client() as client:
                version = client.version().decode()
                stored = client.get(self.layout.layout_key())
            if version_number(version) < VERSION_MIN:
                where = f"memcached server {node.name}"
                found.problems.append(f"{where}: version {version}. Fix: 1.4.14 or newer")
            found.layout = stored.decode(errors="replace") if stored else found.layout
        return found

    def close(self) -> None:
        """See `Store.close`."""
        for node in self._nodes:
            node.close()

    def _node(self, key: str) -> PooledNode:
        return self._nodes[self.layout.bucket(key) % len(self._nodes)]

    def _names(self, key: str) -> tuple[str, str]:
        return self.layout.floor_key(self.layout.bucket(key)), slot_name(self.layout, key)[0]

    def _pair(self, key: str, stored: dict[str, tuple[bytes, bytes]]) -> Pair:
        """Return what of the stored values is a key's; another key's slot is none of its."""
        floor_name, name = self._names(key)
        before = slot_name(self.layout, key)[1]
        slot, cas = stored.get(name, (None, None))
        floor = stored.get(floor_name, (None, None))[0]
        own = None if slot is None or not slot.startswith(before) else slot[len(before) :]
        return Pair(floor, own, cas)
