"""The cache protocol: floors, entries, and what may enter or leave. Pure: no store, no clock."""

from caching.protocol.decisions import (
    Fill,
    Hit,
    Invalidation,
    Miss,
    MissReason,
    Refusal,
    apply_change,
    decide_fill,
    decide_hit,
    decide_invalidation,
)
from caching.protocol.entry import Entry, Placeholder, parse_slot
from caching.protocol.floor import Floor
from caching.protocol.freshness import Freshness, freshness, holds, joined, lacks
from caching.protocol.layout import Layout

__all__ = [
    "Entry",
    "Fill",
    "Floor",
    "Freshness",
    "Hit",
    "Invalidation",
    "Layout",
    "Miss",
    "MissReason",
    "Placeholder",
    "Refusal",
    "apply_change",
    "decide_fill",
    "decide_hit",
    "decide_invalidation",
    "freshness",
    "holds",
    "joined",
    "lacks",
    "parse_slot",
]
