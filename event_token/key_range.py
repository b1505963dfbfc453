"""Key ranges of keyspace ids, and the names of the shards that hold them.

A keyspace id is a byte string, ordered as a binary fraction: byte by byte from the left, with
trailing zero bytes insignificant. So `80` and `8000` are the same bound. A range still keeps the
spelling of its name, because topic names and tokens contain it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from event_token.errors import UsageError

# Hashing vindexes produce keyspace ids of 8 bytes, so a longer bound splits nothing, and the
# shard's name must fit into a topic name.
BOUND_BYTES_MAX = 32

GENERATION_MAX = 1_000_000  # a range that came back a million times is a typing error

_RANGE = re.compile(r"([0-9a-fA-F]*)-([0-9a-fA-F]*)")
_GENERATION = re.compile(r"[1-9][0-9]{0,6}")


class KeyRangeError(UsageError):
    """Raised on an invalid key range or shard name."""


@dataclass(frozen=True)
class KeyRange:
    """The keyspace ids in [`start`, `end`); an `end` of b"" means no upper bound.

    KeyRangeError if the range is empty.
    """

    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        if max(len(self.start), len(self.end)) > BOUND_BYTES_MAX:
            raise KeyRangeError(f"key range '{self}' has a bound of over {BOUND_BYTES_MAX} bytes")
        if self.end and _fraction(self.end) <= _fraction(self.start):
            raise KeyRangeError(f"key range '{self}' is empty: it ends at or before its start")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `-80`, `80-c0` or `-`; KeyRangeError on anything else."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise KeyRangeError(f"'{text}' is not a key range (-80, 80-c0, c0- or -)")
        for bound in match.groups():
            if len(bound) % 2:
                raise KeyRangeError(
                    f"bound '{bound}' of key range '{text}' has an odd number of digits"
                )
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]))

    def __str__(self) -> str:
        """Return the range as `80-c0`."""
        return f"{self.start.hex()}-{self.end.hex()}"

    def contains(self, keyspace_id: bytes) -> bool:
        """Return whether the range contains the id."""
        lower, upper = self._bounds
        return lower <= keyspace_id and (upper is None or keyspace_id < upper)

    def overlaps(self, other: "KeyRange") -> bool:
        """Return whether the two ranges have ids in common."""
        return self.intersection(other) is not None

    def includes(self, other: "KeyRange") -> bool:
        """Return whether this range contains every id of `other`."""
        (my_lower, my_upper), (lower, upper) = self._bounds, other._bounds  # noqa: SLF001
        return my_lower <= lower and (my_upper is None or (upper is not None and upper <= my_upper))

    def intersection(self, other: "KeyRange") -> "KeyRange | None":
        """Return the common range, None if there is none."""
        start = max(self.start, other.start, key=_fraction)
        if not self.end or not other.end:
            end = self.end or other.end
        else:
            end = min(self.end, other.end, key=_fraction)
        if end and _fraction(end) <= _fraction(start):
            return None
        return KeyRange(start, end)

    @cached_property
    def _bounds(self) -> tuple[bytes, bytes | None]:
        """Both bounds, normalised so that they compare as bytes; None for no upper bound."""
        return _fraction(self.start), _fraction(self.end) if self.end else None


def tiles(ranges: Iterable[KeyRange], whole: KeyRange) -> bool:
    """Return whether the ranges, in any order, cover `whole` exactly, without gap or overlap."""
    ordered = sorted(ranges, key=lambda key_range: _fraction(key_range.start))
    if not ordered or _fraction(ordered[0].start) != _fraction(whole.start):
        return False
    for before, after in pairwise(ordered):
        if not before.end or _fraction(before.end) != _fraction(after.start):
            return False
    return _fraction(ordered[-1].end) == _fraction(whole.end)


def covers(ranges: Iterable[KeyRange], whole: KeyRange) -> bool:
    """Return whether every id of `whole` lies in one of the ranges, which may overlap."""
    end = _fraction(whole.end)
    reached = _fraction(whole.start)
    for key_range in sorted(ranges, key=lambda key_range: _fraction(key_range.start)):
        if _fraction(key_range.start) > reached:
            return False
        if not key_range.end:
            return True
        reached = max(reached, _fraction(key_range.end))
        if whole.end and reached >= end:
            return True
    return False


def _fraction(bound: bytes) -> bytes:
    """Return the bound without trailing zero bytes, which are insignificant."""
    return bound.rstrip(b"\0")


@dataclass(frozen=True)
class ShardName:
    """A shard's name: its range, and which shard of that range it is (its generation).

    Names are never reused: a range that comes back after a reshard gets the next generation.
    """

    key_range: KeyRange
    generation: int = 1

    def __post_init__(self) -> None:
        """Check the generation."""
        if not 1 <= self.generation <= GENERATION_MAX:
            raise KeyRangeError(
                f"generation {self.generation} of shard '{self.key_range}' is outside "
                f"1..{GENERATION_MAX}",
            )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `80-c0` or `80-c0.2`; KeyRangeError on anything else."""
        range_text, dot, generation_text = text.partition(".")
        key_range = KeyRange.parse(range_text)
        if not dot:
            return cls(key_range)
        if generation_text == "1" or _GENERATION.fullmatch(generation_text) is None:
            raise KeyRangeError(
                f"'{generation_text}' in shard name '{text}' is not a generation: the first "
                f"has no suffix, later ones have .2, .3 and so on",
            )
        return cls(key_range, int(generation_text))

    def __str__(self) -> str:
        """Return the name; the first generation has no suffix."""
        suffix = "" if self.generation == 1 else f".{self.generation}"
        return f"{self.key_range}{suffix}"
