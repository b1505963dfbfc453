"""The cache protocol: floors, entries, and what may enter or leave. Pure: no store, no clock."""

from caching.protocol.decisions import (
    Fill,
    Hit,
    Miss,
    MissReason,
    Refusal,
    apply_change,
    decide_fill,
    decide_hit,
)
from caching.protocol.freshness import Freshness, freshness, holds, joined, lacks
from caching.protocol.layout import CacheLayout
from caching.protocol.stored_forms import CacheEntry, Floor, Placeholder, parse_slot

__all__ = [
    "CacheEntry",
    "Fill",
    "Floor",
    "Freshness",
    "Hit",
    "CacheLayout",
    "Miss",
    "MissReason",
    "Placeholder",
    "Refusal",
    "apply_change",
    "decide_fill",
    "decide_hit",
    "freshness",
    "holds",
    "joined",
    "lacks",
    "parse_slot",
]
