"""An invalidation on the stored bytes of a bucket, as one compare-and-set carries it out."""

from dataclasses import dataclass

from caching.protocol import Floor, apply_change
from event_token import EventToken
from tests.caching.protocol.tokens import TRUSTED


@dataclass(frozen=True)
class Invalidation:
    """What a change does to its bucket and key: the new floor, and whether the value goes."""

    floor: bytes
    remove: bool


def decide_invalidation(
    floor: bytes | None, slot: bytes | None, change: EventToken
) -> Invalidation | None:
    """Decide what a change of the key does; None if the floor is missing and has to be made."""
    present = Floor.parse(floor)
    if present is None:
        return None
    raised, remove = apply_change(present, slot, change, TRUSTED)
    return Invalidation(raised.to_bytes(), remove)
