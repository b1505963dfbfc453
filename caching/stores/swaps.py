"""How an invalidation changes a bucket: one compare-and-set, decided from what was read.

Pure; the stores read the states, carry the swaps out, and decide again for those that lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from caching.protocol import Floor, Layout, apply_change
from caching.stores.store import KeyChange

CLAIM_BYTE = 0x43
CLAIM_NONCE_BYTES = 16


class Swap(NamedTuple):
    """A floor to write where `seen` is (None deletes), the slots that go, and those that stay.

    `kept` slots must still begin with these bytes, for they were checked to hold the changes.
    `raised` is the floor to write, parsed.
    """

    bucket: int
    seen: bytes
    floor: bytes | None
    removed: tuple[str, ...]
    kept: Mapping[str, bytes]
    raised: Floor | None = None


def by_bucket(layout: Layout, changes: Iterable[KeyChange]) -> dict[int, list[KeyChange]]:
    """Group changes by the buckets of their keys, in their order."""
    grouped: dict[int, list[KeyChange]] = {}
    for change in changes:
        grouped.setdefault(layout.bucket(change.key), []).append(change)
    return grouped


def decide_swap(
    bucket: int,
    changes: Sequence[KeyChange],
    floor: bytes | None,
    slots: Mapping[str, bytes | None],
    present: Floor | None = None,
) -> Swap | None:
    """Decide what the changes do to their bucket; None if it has neither a floor nor a claim.

    A slot that was absent is removed all the same: a fill that was checked against the floor as it
    was may arrive until the floor is raised. `present` is the floor, if it has been parsed before.
    """
    if floor is None:
        return None
    present = present or Floor.parse(floor)
    if present is None:  # a claim: whoever makes this floor asked for the logs' ends before
        return Swap(bucket, floor, None, tuple(slots), {})
    raised = present
    removed = {key: slot is None for key, slot in slots.items()}
    for change in changes:
        raised, is_removed = apply_change(raised, slots[change.key], change.token)
        removed[change.key] |= is_removed
    kept = {key: slot for key, slot in slots.items() if slot is not None and not removed[key]}
    gone = tuple(key for key, is_gone in removed.items() if is_gone)
    written = floor if raised is present else raised.to_bytes()
    return Swap(bucket, floor, written, gone, kept, raised)
