"""The calls of a client on Redis, without I/O: each yields commands and is sent their replies."""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from caching.errors import StoreError
from caching.protocol import Layout, Placeholder
from caching.protocol.entry import PLACEHOLDER_NONCE_BYTES
from caching.stores.known_floors import KnownFloor, KnownFloors
from caching.stores.on_redis.scripts import (
    FILL,
    PREPARE,
    RELEASE,
    SWAP,
    SWAP_CLOSED,
    SWAP_KEEPING,
    SWAP_LOST,
    Call,
)
from caching.stores.store import Invalidated, KeyChange, Pair
from caching.stores.swaps import Swap, by_bucket, decide_swap

T = TypeVar("T")
Steps = Generator[list[Call], list[Any], T]

# An invalidation reads only the head of a slot: generation and tokens of a hundred shards. A slot
# whose tokens are longer is removed without a look at them.
SLOT_HEAD_BYTES = 4_096
# Whoever lost has seen somebody else win; more rounds than processes write to one bucket at once.
ROUNDS_MAX = 1_000


def read(layout: Layout, keys: Sequence[str]) -> Steps[list[Pair]]:
    """See `Store.read`: both of a key in one MGET, which is one step on the server."""
    replies = yield [read_call(layout, key) for key in keys]
    return [Pair(floor, slot) for floor, slot in replies]


def read_stale(layout: Layout, key: str) -> Steps[Pair]:
    """See `Store.read_stale`."""
    bucket = layout.bucket(key)
    words = ("MGET", layout.floor_key(bucket), layout.stale_key(key))
    [(floor, slot)] = yield [Call(layout.group(bucket), words)]
    return Pair(floor, slot)


def read_call(layout: Layout, key: str) -> Call:
    """Return the call that reads the pair of a key."""
    group, floor, slot = layout.place(key)
    return Call(group, ("MGET", floor, slot))


def prepare(layout: Layout, key: str, seen: Pair, lease_ms: int) -> Steps[Pair | None]:
    """See `Store.prepare`."""
    if not lease_ms:
        return seen
    placeholder = Placeholder(os.urandom(PLACEHOLDER_NONCE_BYTES)).to_bytes()
    [reply] = yield [
        PREPARE.call(*_floor_and_slot(layout, key), (seen.slot or b"", placeholder, lease_ms))
    ]
    return None if reply == 0 else Pair(reply[0], seen.slot, placeholder)


def fill(
    layout: Layout, key: str, expected: Pair, entry: bytes, ttl_ms: int
) -> Steps[bool]:  # fmt: skip
    """See `Store.fill`."""
    if expected.floor is None:
        return False
    slot = expected.version or expected.slot or b""
    [reply] = yield [
        FILL.call(*_floor_and_slot(layout, key), (expected.floor, slot, entry, ttl_ms))
    ]
    return bool(reply)


def release(layout: Layout, key: str, prepared: Pair) -> Steps[None]:
    """See `Store.release`."""
    if prepared.version is not None:
        group = layout.group(layout.bucket(key))
        yield [RELEASE.call(group, (layout.slot_key(key),), (prepared.version,))]


def read_again(layout: Layout, key: str) -> Steps[Pair | None]:
    """See `Store.read_again`."""
    [pair] = yield from read(layout, [key])
    return pair


def together(several: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run several calls side by side: what they send at a time is sent at once."""
    results: dict[int, T] = {}
    waiting: dict[int, list[Call]] = {}

    def go_on(number: int, replies: list[Any] | None) -> None:
        try:
            # A generator that has not begun takes None.
            waiting[number] = several[number].send(replies)  # type: ignore[arg-type]
        except StopIteration as done:
            waiting.pop(number, None)
            results[number] = done.value

    for number in range(len(several)):
        go_on(number, None)
    while waiting:
        sent = {number: len(calls) for number, calls in waiting.items()}
        replies = iter((yield [call for calls in waiting.values() for call in calls]))
        for number, count in sent.items():
            go_on(number, list(islice(replies, count)))
    return [results[number] for number in range(len(several))]


def forget(layout: Layout, keys: Sequence[str], stale_ok_s: int = 0) -> Steps[None]:
    """See `Store.forget`."""
    calls = []
    for key in keys:
        names = (layout.slot_key(key), layout.stale_key(key))[: 2 if stale_ok_s else 1]
        calls.append(Call(layout.group(layout.bucket(key)), ("DEL", *names)))
    yield calls


def want_floors(layout: Layout, buckets: Iterable[int]) -> Steps[None]:
    """See `Store.want_floors`."""
    groups = {bucket: layout.group(bucket) for bucket in buckets}
    yield [
        Call(group, ("SADD", layout.wanted_key(group), bucket)) for bucket, group in groups.items()
    ]


def position(layout: Layout, node: str, key_range: str) -> Steps[bytes | None]:
    """See `Store.position`."""
    [reply] = yield [Call(int(node), ("GET", layout.position_key(int(node), key_range)))]
    return reply if reply is None else bytes(reply)


# What `together` may call.
CALLS: Mapping[str, Callable[..., Steps[Any]]] = {
    "prepare": prepare,
    "fill": fill,
    "read_again": read_again,
    "release": release,
    "position": position,
}


def invalidate(
    layout: Layout,
    changes: Iterable[KeyChange],
    stale_ok_s: int = 0,
    known: KnownFloors | None = None,
) -> Steps[Invalidated]:
    """See `Store.invalidate`: read all buckets, swap all, and again those that lost.

    Floors that are `known` are not read.
    """
    known = KnownFloors(0) if known is None else known
    waiting = by_bucket(layout, changes)
    raised = removed = repeats = 0
    closed: set[int] = set()
    for _ in range(ROUNDS_MAX):
        if not waiting:
            return Invalidated(raised, removed, repeats, frozenset(closed))
        swaps = yield from _decide(layout, waiting, known)
        closed |= waiting.keys() - {swap.bucket for swap in swaps}
        replies = yield [swap_call(layout, swap, stale_ok_s) for swap in swaps]
        lost = set()
        for swap, reply in zip(swaps, replies, strict=True):
            known.forget(swap.bucket)
            if reply == SWAP_LOST:
                lost.add(swap.bucket)
            elif reply == SWAP_CLOSED or swap.floor is None:
                closed.add(swap.bucket)
            else:
                raised += swap.floor != swap.seen
                removed += reply
                if swap.raised is not None:
                    known.note(swap.bucket, KnownFloor(swap.floor, swap.raised))
        repeats += len(lost)
        waiting = {bucket: waiting[bucket] for bucket in waiting if bucket in lost}
    bucket = next(iter(waiting))
    raise StoreError(str(layout.group(bucket)), f"bucket {bucket} was written to all the time")


def swap_call(layout: Layout, swap: Swap, stale_ok_s: int = 0) -> Call:
    """Return the call that carries a swap out, and keeps removed values for `stale_ok_s`."""
    slots = [layout.slot_key(key) for key in (*swap.kept, *swap.removed)]
    keys = [layout.floor_key(swap.bucket), *slots]
    args = (swap.seen, swap.floor or b"", *swap.kept.values())
    group = layout.group(swap.bucket)
    if stale_ok_s:
        keys += [layout.stale_key(key) for key in swap.removed]
        return SWAP_KEEPING.call(group, keys, (*args, stale_ok_s * 1_000))
    return SWAP.call(group, keys, args)


def _decide(
    layout: Layout, waiting: dict[int, list[KeyChange]], known: KnownFloors
) -> Steps[list[Swap]]:
    calls = []
    asked = []
    for bucket, changes in waiting.items():
        group = layout.group(bucket)
        floor, keys = known.get(bucket), list(dict.fromkeys(each.key for each in changes))
        if floor is None:
            calls.append(Call(group, ("GET", layout.floor_key(bucket))))
        for key in keys:
            head = ("GETRANGE", layout.slot_key(key), 0, SLOT_HEAD_BYTES - 1)
            calls.append(Call(group, head))
        asked.append((bucket, floor, keys))
    replies = iter((yield calls))
    swaps = []
    for bucket, floor, keys in asked:
        stored = next(replies) if floor is None else floor.stored
        slots = {key: next(replies) or None for key in keys}
        present = None if floor is None else floor.floor
        swap = decide_swap(bucket, waiting[bucket], stored, slots, present)
        if swap is not None:
            swaps.append(swap)
    return swaps


def _floor_and_slot(layout: Layout, key: str) -> tuple[int, tuple[str, str]]:
    group, floor, slot = layout.place(key)
    return group, (floor, slot)
