"""How an invalidation changes a bucket: one compare-and-set, decided from what was read.

Pure; the stores read the states, carry the swaps out, and decide again for those that lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from caching.protocol import Layout, decide_invalidation
from caching.stores.store import KeyChange

CLAIM_BYTE = 0x43
CLAIM_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Swap:
    """A floor to write where `seen` is (None deletes), the slots that go, and those that stay.

    `kept` slots must still begin with these bytes, for they were checked to hold the changes.
    """

    bucket: int
    seen: bytes
    floor: bytes | None
    removed: tuple[str, ...]
    kept: Mapping[str, bytes]


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
) -> Swap | None:
    """Decide what the changes do to their bucket; None if it has neither a floor nor a claim.

    A slot that was absent is removed all the same: a fill that was checked against the floor as it
    was may arrive until the floor is raised.
    """
    if floor is None:
        return None
    raised = floor
    removed = {key: slot is None for key, slot in slots.items()}
    for change in changes:
        decision = decide_invalidation(raised, slots[change.key], change.token)
        if decision is None:  # a claim: whoever makes this floor asked for the logs' ends before
            return Swap(bucket, floor, None, tuple(slots), {})
        raised = decision.floor
        removed[change.key] |= decision.remove
    kept = {key: slot for key, slot in slots.items() if slot is not None and not removed[key]}
    gone = tuple(key for key, is_gone in removed.items() if is_gone)
    return Swap(bucket, floor, raised, gone, kept)
