"""The three decisions of the protocol: hits, fills, and the values that a change removes.

Each takes the bytes of a bucket's floor and of a key's slot as they were read together. What it
decides may be carried out only while both are still the same bytes: one script on Redis, a
compare-and-set behind a placeholder on memcached. So no clock and no TTL takes part, and a process
may stop for an hour between any two steps. `clock` says how far the servers' clocks may be off,
where reads are compared with changes of other shards.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from caching.protocol.freshness import (
    Freshness,
    Tokens,
    freshness,
    holds,
    holds_writes,
    is_not_older,
)
from caching.protocol.stored_forms import (
    ENTRY_BYTE,
    FLOOR_BYTE,
    GENERATION_BYTES,
    CacheEntry,
    Floor,
    Placeholder,
    parse_slot,
    read_value,
)
from event_token import ClockUncertainty, EventToken


class MissReason(Enum):
    """Why a slot is no hit."""

    ABSENT = "absent"
    NO_FLOOR = "no_floor"
    GENERATION = "generation"
    LEASED = "leased"
    TOO_OLD = "too_old"


class Refusal(Enum):
    """Why a value may not be filled in."""

    NO_FLOOR = "no_floor"
    OLDER = "older"
    UNKNOWN = "unknown"
    UNCOVERED = "uncovered"
    REPLACED = "replaced"


class Hit(NamedTuple):
    """The value may be returned; None if the entry says that there is no such row.

    `stored` is the whole entry: its tokens are read only by those who need them.
    """

    codec: int
    value: bytes | None
    stored: bytes

    @property
    def tokens(self) -> Tokens:
        """The tokens of the reads that the value was made of; none if they are broken."""
        found = parse_slot(self.stored)
        return found.tokens if isinstance(found, CacheEntry) else {}


@dataclass(frozen=True, slots=True)
class Miss:
    """The database has to be asked."""

    reason: MissReason


@dataclass(frozen=True, slots=True)
class Fill:
    """The value may be written under this generation."""

    generation: bytes


_GENERATION_END = 1 + GENERATION_BYTES

_REFUSALS = {
    Freshness.OLDER: Refusal.OLDER,
    Freshness.UNKNOWN: Refusal.UNKNOWN,
    Freshness.UNCOVERED: Refusal.UNCOVERED,
}


def decide_hit(
    floor: bytes | None,
    slot: bytes | None,
    clock: ClockUncertainty,
    newer_than: Collection[EventToken] = (),
) -> Hit | Miss:
    """Decide whether the slot answers a read that must hold every write in `newer_than`.

    A write on a shard that no row of the value was read on says nothing about the value. Of the
    floor only the generation counts, so a hit does not read its tokens. A missing floor is
    reported first, because somebody has to ask for it.
    """
    if floor is None or len(floor) <= _GENERATION_END or floor[0] != FLOOR_BYTE:
        return Miss(MissReason.NO_FLOOR)
    if not slot:
        return Miss(MissReason.ABSENT)
    if slot[0] != ENTRY_BYTE:
        is_leased = isinstance(parse_slot(slot), Placeholder)
        return Miss(MissReason.LEASED if is_leased else MissReason.ABSENT)
    found = read_value(slot)
    if found is None:
        return Miss(MissReason.ABSENT)
    if slot[1:_GENERATION_END] != floor[1:_GENERATION_END]:
        return Miss(MissReason.GENERATION)
    hit = Hit(*found, slot)
    if newer_than and not holds_writes(hit.tokens, newer_than, clock):
        return Miss(MissReason.TOO_OLD)
    return hit


def decide_fill(
    floor: bytes | None,
    slot: bytes | None,
    read: Tokens,
    clock: ClockUncertainty,
) -> Fill | Refusal:
    """Decide whether a value that was read at these tokens may enter the slot."""
    present = Floor.parse(floor)
    if present is None:
        return Refusal.NO_FLOOR
    fresh = freshness(read, present.tokens, clock)
    if fresh is not Freshness.FRESH:
        return _REFUSALS[fresh]
    found = parse_slot(slot)
    is_live = isinstance(found, CacheEntry) and found.generation == present.generation
    if isinstance(found, CacheEntry) and is_live and not is_not_older(read, found.tokens, clock):
        return Refusal.REPLACED
    return Fill(present.generation)


def apply_change(
    floor: Floor,
    slot: bytes | None,
    change: EventToken,
    clock: ClockUncertainty,
) -> tuple[Floor, bool]:
    """Return the floor that a change of the key raises, and whether the value goes.

    The floor is raised before the value goes, or both in one step. The value stays only if it is
    proven to hold the change; a placeholder always goes.
    """
    if slot is None:
        return floor.raised(change), False
    found = parse_slot(slot)
    stays = (
        isinstance(found, CacheEntry)
        and found.generation == floor.generation
        and holds(found.tokens, change, clock)
    )
    return floor.raised(change), not stays
