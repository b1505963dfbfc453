"""The rule for upserts: rows are kept per key and home, and the newest live home is visible. Pure.

The home of a row is its keyspace id. It stays the same when a reshard moves the row to another
shard, and changes when an application moves the row by another value of the sharding key. The
shard that such a row leaves deletes its own copy, at a time of its own clock; if rows were kept per
key alone, that DELETE could remove the copy on the other shard.

A row without a keyspace id (its table has no vindex) is at home wherever key ranges overlap: of
two shards with overlapping ranges one came from the other by reshards.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from event_token import EventToken, KeyRange, Order, ShardName, compare


class Decision(Enum):
    """What happens to a change that meets a stored version of the same key and home."""

    APPLY = "apply"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Version:
    """What one change left at one key and home.

    `home`: the keyspace id, None where the table has no vindex or it is not known. `row`: whatever
    the caller keeps of a row, such as its JSON text; None after a DELETE (a tombstone). `token`:
    the opaque event token, None where it was not kept. `is_partial`: the row lacks columns, whose
    values stay.
    """

    shard: str
    seq: int
    timestamp_us: int
    home: bytes | None
    row: object
    token: str | None = None
    is_partial: bool = False

    @property
    def order(self) -> tuple[int, str, int]:
        """The place in the merged stream."""
        return self.timestamp_us, self.shard, self.seq


def decide(stored: Version, change: Version) -> Decision:
    """Decide whether a change replaces the stored version of the same key and home.

    Within one log `seq` decides, so that a replay is dropped. Across logs the event tokens decide;
    where they cannot, the change is applied, because it comes later in the stream.
    """
    if stored.shard == change.shard:
        return Decision.DROP if stored.seq >= change.seq else Decision.APPLY
    if stored.token is None or change.token is None:
        is_newer = stored.timestamp_us > change.timestamp_us
        return Decision.DROP if is_newer else Decision.APPLY
    match compare(EventToken.from_string(stored.token), EventToken.from_string(change.token)):
        case Order.NEWER | Order.EQUAL:
            return Decision.DROP
        case Order.OLDER | Order.UNKNOWN:
            return Decision.APPLY


def is_same_home(a: Version, b: Version) -> bool:
    """Tell whether two versions of one key are versions of one row."""
    if a.home is not None and b.home is not None:
        return a.home == b.home
    return a.shard == b.shard or range_of(a.shard).overlaps(range_of(b.shard))


@lru_cache(maxsize=4096)
def range_of(shard: str) -> KeyRange:
    """Return the key range of a shard."""
    return ShardName.parse(shard).key_range


def add_version(versions: list[Version], change: Version) -> None:
    """Add a version of a key; of each log and home only the newest one is kept.

    Changes may be added in any order.
    """
    for i, stored in enumerate(versions):
        if stored.shard == change.shard and stored.home == change.home:
            if decide(stored, change) is Decision.APPLY:
                versions[i] = change
            return
    versions.append(change)


# Makes a whole row of a partial change: (what is kept of its home, a row, a tombstone or None; the
# change) -> the row.
LayOver = Callable[[Version | None, Version], Version]


def apply_change(kept: list[Version], change: Version, lay_over: LayOver | None = None) -> bool:
    """Put a change in the place of what is kept of its home; tell whether it was newer."""
    rivals = [version for version in kept if is_same_home(version, change)]
    if any(decide(version, change) is Decision.DROP for version in rivals):
        return False
    base = max(rivals, key=lambda version: version.order, default=None)
    if change.is_partial and lay_over is not None:
        change = lay_over(base, change)
    kept[:] = [version for version in kept if not any(version is rival for rival in rivals)]
    kept.append(change)
    return True


def in_order(versions: Iterable[Version]) -> list[Version]:
    """Return versions in merged order."""
    return sorted(versions, key=lambda version: version.order)


def live_homes(versions: Iterable[Version]) -> list[Version]:
    """Return the rows of one key, one per live home, the newest and so visible one first."""
    kept: list[Version] = []
    for change in in_order(versions):
        apply_change(kept, change)
    return [version for version in reversed(in_order(kept)) if version.row is not None]
