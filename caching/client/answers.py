"""What a client's decisions come to: hits, misses, loaded values and answers."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from caching.protocol import Hit, MissReason
from caching.protocol.freshness import Tokens
from caching.stores.store import Pair


class Found(NamedTuple):
    """A hit with its value."""

    value: object
    hit: Hit


class Missed(NamedTuple):
    """A key that is no hit: its pair, and why.

    `pair` is None where the store was bypassed or did not answer; `reason` is None for a value
    that cannot be decoded.
    """

    pair: Pair | None
    reason: MissReason | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it is stored (None: there is no such row), and what it is proven to hold.

    `is_stale`: it was removed from the cache by a change that it may lack.
    """

    encoded: bytes | None
    tokens: Tokens
    is_stale: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A value for a caller that takes stale ones; `is_stale`: a change of it was applied since."""

    value: Any
    is_stale: bool = False
