"""An invalidation on memcached: the floor by compare-and-set, and then its keys' values.

The slots are read after the floor is raised. A value that holds the changes then stays: whoever
replaces it from now on has read the raised floor, because the placeholder came before that.

Cas ids begin again when a server is restarted, so what is read and then replaced by its cas id
goes over one connection.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheServerError

from caching.errors import StoreError, StoreFull
from caching.protocol import Layout
from caching.protocol.entry import is_entry
from caching.stores.on_memcached.names import slot_name, stale_name
from caching.stores.on_memcached.nodes import Node, is_full
from caching.stores.store import Invalidated, KeyChange
from caching.stores.swaps import by_bucket, decide_swap

# Whoever lost has seen somebody else win; more rounds than processes write to one bucket at once.
ROUNDS_MAX = 1_000
# Floors never expire.
FOR_EVER = 0


@dataclass
class _Raising:
    """The floors of one node on their way up."""

    changes: dict[int, list[KeyChange]]
    waiting: set[int] = field(init=False)
    closed: set[int] = field(default_factory=set)
    raised: int = 0
    repeats: int = 0

    def __post_init__(self) -> None:
        """All of them wait."""
        self.waiting = set(self.changes)


def invalidate(
    layout: Layout, nodes: Sequence[Node], changes: Iterable[KeyChange], stale_ok_s: int = 0
) -> Invalidated:
    """See `Store.invalidate`; node by node. With `stale_ok_s` removed values are kept so long."""
    grouped = by_bucket(layout, changes)
    done = Invalidated()
    for number, node in enumerate(nodes):
        own = {bucket: grouped[bucket] for bucket in grouped if bucket % len(nodes) == number}
        raising = _Raising(own)
        for _ in range(ROUNDS_MAX):
            if not raising.waiting:
                break
            _raise_floors(layout, node, raising)
        else:
            raise StoreError(node.name, f"bucket {min(raising.waiting)} changed all the time")
        removed = 0
        if open_ := own.keys() - raising.closed:
            with node.client() as client:
                removed = sum(
                    _remove(layout, client, bucket, own[bucket], stale_ok_s) for bucket in open_
                )
        done = Invalidated(
            done.floors_raised + raising.raised,
            done.values_removed + removed,
            done.repeats + raising.repeats,
            done.closed | raising.closed,
        )
    return done


def replace_floor(node: Node, client: Client, name: str, floor: bytes, cas: bytes) -> bool:
    """Write a floor over the one with this cas id.

    If there is no memory for it, the floor is deleted, which closes its bucket, and StoreFull
    raised. The library has closed the connection then, and it stays closed: who relies on it has
    to notice that the next one is new.
    """
    try:
        return bool(client.cas(name, floor, cas, FOR_EVER))
    except MemcacheServerError as fault:
        if not is_full(fault):
            raise
        client.delete(name, noreply=False)
        client.close()
        raise StoreFull(node.name, f"cache server {node.name}: {fault}") from fault


def _raise_floors(layout: Layout, node: Node, raising: _Raising) -> None:
    """Try once to raise each of the floors that wait, until one finds no memory."""
    names = {layout.floor_key(bucket): bucket for bucket in sorted(raising.waiting)}
    bucket = -1
    try:
        with node.client() as client:
            stored = client.gets_many(list(names))
            for name, bucket in names.items():
                floor, cas = stored.get(name, (None, None))
                changes = raising.changes[bucket]
                swap = decide_swap(bucket, changes, floor, {each.key: None for each in changes})
                if swap is None or swap.floor is None:
                    raising.closed.add(bucket)
                    if swap is not None:
                        client.delete(name, noreply=False)
                elif swap.floor != swap.seen:
                    if not replace_floor(node, client, name, swap.floor, cas):
                        raising.repeats += 1
                        continue
                    raising.raised += 1
                raising.waiting.discard(bucket)
    except StoreFull:
        if bucket < 0:
            raise
        raising.closed.add(bucket)
        raising.waiting.discard(bucket)


def _remove(
    layout: Layout, client: Client, bucket: int, changes: Sequence[KeyChange], stale_ok_s: int
) -> int:
    """Delete the slots that do not hold the changes; return how many there were."""
    names = {each.key: slot_name(layout, each.key) for each in changes}
    floor_name = layout.floor_key(bucket)
    stored = client.get_many([floor_name, *(name for name, _ in names.values())])
    slots = {}
    for key, (name, before) in names.items():
        slot = stored.get(name)
        slots[key] = None if slot is None else slot[len(before) :]
    swap = decide_swap(bucket, changes, stored.get(floor_name), slots)
    gone = slots if swap is None else swap.removed
    there = [names[key][0] for key in gone if slots[key] is not None]
    client.delete_many(there, noreply=False)
    # If there is no memory for it, the call is repeated and finds nothing to keep.
    for key in gone if stale_ok_s else ():
        if is_entry(slots[key] or b""):
            client.set(stale_name(layout, key), stored[names[key][0]], stale_ok_s, noreply=False)
    return len(there)
