"""The positions that invalidators publish: their bytes, and which of two is further. Pure.

A position is a place in each of several logs, so of two neither may be further. A shard that was
resharded is compared by descent: a reader of a target has read its sources to their END.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from event_token import ShardName, StreamPosition, UsageError
from topics.keyspace.topology import Topology

POSITION_BYTE = 0x53
_COUNT_BYTES = 8
_HEAD_BYTES = 1 + _COUNT_BYTES

# Shard by shard, those that it was made of, however long ago.
Ancestors = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Published:
    """A published position; `count` goes up with every publication, also of the same place."""

    count: int
    position: StreamPosition

    def to_bytes(self) -> bytes:
        """Return the stored form: 0x53, count (8 bytes), the position's string."""
        count = self.count.to_bytes(_COUNT_BYTES, "little")
        return bytes([POSITION_BYTE]) + count + self.position.to_string().encode()

    @classmethod
    def parse(cls, stored: bytes | None) -> "Published | None":
        """Read the stored form; None for none and for bytes of another layout."""
        if stored is None or len(stored) <= _HEAD_BYTES or stored[0] != POSITION_BYTE:
            return None
        try:
            position = StreamPosition.from_string(stored[_HEAD_BYTES:].decode())
        except (UsageError, UnicodeDecodeError):
            return None
        return cls(int.from_bytes(stored[1:_HEAD_BYTES], "little"), position)


def ancestors_of(topology: Topology) -> dict[str, frozenset[str]]:
    """Return the shards that each target of a reshard comes from, directly or not."""
    found: dict[str, frozenset[str]] = {}
    for reshard in topology.reshards:  # in the order in which they were made
        sources = frozenset(reshard.sources)
        older = frozenset(a for source in sources for a in found.get(source, ()))
        for target in reshard.targets:
            found[target] = found.get(target, frozenset()) | sources | older
    return found


def reaches(position: StreamPosition, other: StreamPosition, ancestors: Ancestors) -> bool:
    """Tell whether everything before `other` is before `position`, too."""
    return all(_is_read(position, shard, at.seq, ancestors) for shard, at in other.shards.items())


def is_older(stored: Published | None, seen: Published | None) -> bool:
    """Tell whether a node holds a publication from before the one that was last seen there."""
    return stored is not None and seen is not None and stored.count < seen.count


def _is_read(position: StreamPosition, shard: str, seq: int, ancestors: Ancestors) -> bool:
    if shard in position.shards:
        return position.shards[shard].seq >= seq
    key_range = ShardName.parse(shard).key_range
    over = [s for s in position.shards if ShardName.parse(s).key_range.overlaps(key_range)]
    return bool(over) and all(shard in ancestors.get(each, ()) for each in over)


def earliest(positions: Iterable[StreamPosition], ancestors: Ancestors) -> StreamPosition:
    """Return the place from which nothing after any of the positions is left out."""
    given = list(positions)
    shards = {shard for position in given for shard in position.shards}
    ended = {s for s in shards if any(other in ancestors.get(s, ()) for other in shards)}
    places = {
        shard: min(
            (each.shards[shard] for each in given if shard in each.shards), key=lambda at: at.seq
        )
        for shard in shards - ended
    }
    return StreamPosition(
        min(each.epoch for each in given), min(each.frontier_us for each in given), places
    )
