"""The rule for upserts: rows are kept per key and home, and the newest live home is visible. Pure.

The home of a row is its keyspace id. It stays the same when a reshard moves the row to another
shard, and changes when an application moves the row by another value of the sharding key. The
shard that such a row leaves deletes its own copy, at a time of its own clock; if rows were kept per
key alone, that DELETE could remove the copy on the other shard.

A row without a keyspace id (its table has no vindex) is at home wherever key ranges overlap: of
two shards with overlapping ranges one came from the other by reshards.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from event_token import EventToken, KeyRange, Order, ShardName, compare
from topics.errors import CannotApply

KEY = "_key"
HOME = "_home"
SHARD = "_shard"
SEQ = "_seq"
TIME = "_time_us"
DELETED = "_deleted"
TOKEN = "_token"  # noqa: S105 - the name of a column
COMPARE = "_compare"
ABSENT = "_absent"
OP = "_op"

# The columns in front of a table's own.
# _key: JSON text of the primary key. _home: keyspace id, null where the table has none.
# _deleted: a tombstone. _token: null where the query reads no tokens.
# _compare: the change was late or a possible duplicate, so it must be compared with what is stored;
# false: it is newer than everything that is stored of its home.
# _absent: columns that the row image lacks, whose stored values stay; null: the row is whole.
META = pa.schema(
    [
        pa.field(KEY, pa.string()),
        pa.field(HOME, pa.binary()),
        pa.field(SHARD, pa.string()),
        pa.field(SEQ, pa.int64()),
        pa.field(TIME, pa.int64()),
        pa.field(DELETED, pa.bool_()),
        pa.field(TOKEN, pa.string()),
        pa.field(COMPARE, pa.bool_()),
        pa.field(ABSENT, pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True)
class Version:
    """What one change left at one key and home.

    `home`: the keyspace id, None where the table has no vindex or it is not known. `row`: what the
    caller keeps of a row, such as its JSON text; None after a DELETE (a tombstone). `token`: the
    opaque event token, None where it was not kept. `is_partial`: the row lacks columns, whose
    values stay. `number`: the index of the row, or of the tombstone, in a table of the caller.
    """

    shard: str
    seq: int
    timestamp_us: int
    home: bytes | None
    row: object
    token: str | None = None
    is_partial: bool = False
    number: int = field(default=-1, compare=False)

    @property
    def order(self) -> tuple[int, str, int]:
        """The place in the merged stream."""
        return self.timestamp_us, self.shard, self.seq


def version_at(record: Mapping[str, Any], home: bytes | None = None, row: object = None) -> Version:
    """Return what a record of a log leaves at a home; by default the place of a statement."""
    place = record["shard"], record["seq"], record["timestamp_us"]
    return Version(*place, home, row, record.get("token"))


def version_of(row: Mapping[str, Any], number: int) -> Version:
    """Return a change or a stored row, by its columns of META, as a version.

    What the version keeps of the row are its layers: the numbers of the rows of a table that it is
    made of, the newest first; one, unless partial row images lie over each other.
    """
    is_deleted = bool(row.get(DELETED))
    return Version(
        row[SHARD],
        row[SEQ],
        row[TIME],
        row[HOME],
        None if is_deleted else (number,),
        row.get(TOKEN),
        is_partial=not is_deleted and row.get(ABSENT) is not None,
        number=number,
    )


def is_replaced(stored: Version, change: Version) -> bool:
    """Tell whether a change replaces the stored version of the same key and home.

    Within one log `seq` decides, so that a replay changes nothing. Across logs the event tokens
    decide; where they cannot, the change replaces it, because it comes later in the stream.
    """
    if stored.shard == change.shard:
        return stored.seq < change.seq
    if stored.token is None or change.token is None:
        return stored.timestamp_us <= change.timestamp_us
    # Without the uncertainty of clocks: a target's times are raised to the hop time, which is later
    # than any of its sources', so no clock decides between the two. UNKNOWN would let a late change
    # of a source replace what its target has written since.
    order = compare(EventToken.from_string(stored.token), EventToken.from_string(change.token))
    return order in {Order.OLDER, Order.UNKNOWN}


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
            if is_replaced(stored, change):
                versions[i] = change
            return
    versions.append(change)


# Makes a whole row of a partial change: (what is kept of its home, a row, a tombstone or None; the
# change) -> the row.
LayOver = Callable[[Version | None, Version], Version]


def apply_change(kept: list[Version], change: Version, lay_over: LayOver | None = None) -> bool:
    """Put a change in the place of what is kept of its home; return whether it was newer."""
    rivals = [version for version in kept if is_same_home(version, change)]
    if not all(is_replaced(version, change) for version in rivals):
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


def visible_of(newest_first: Iterable[Version]) -> Version | None:
    """Return the newest live version, the row that readers see; None: the key has none."""
    return next((version for version in newest_first if version.row is not None), None)


def live_homes(versions: Iterable[Version]) -> list[Version]:
    """Return the rows of one key, one per live home, the newest and so visible one first."""
    kept: list[Version] = []
    for change in in_order(versions):
        apply_change(kept, change)
    return [version for version in reversed(in_order(kept)) if version.row is not None]


@dataclass(frozen=True, slots=True)
class Settled:
    """What a key has after its changes.

    `visible`: the newest live row. `others`: live rows of other homes, which it hides, and
    tombstones; the newest first. `dropped`: the number of changes that were not applied, because
    what is stored is newer.
    """

    visible: Version | None
    others: tuple[Version, ...]
    dropped: int = 0

    @property
    def versions(self) -> tuple[Version, ...]:
        """All versions."""
        return self.others if self.visible is None else (self.visible, *self.others)


def settle(
    stored: Iterable[Version], changes: Iterable[Version], lay_over: LayOver | None = None
) -> Settled:
    """Apply changes of one key, in any order, to all its stored versions, tombstones included.

    It may be done again with the same changes, as a replay does. `lay_over` makes whole rows of
    changes that are partial; without it a partial change stands for itself.
    """
    kept: list[Version] = []
    for version in in_order(stored):
        apply_change(kept, version)
    dropped = sum(not apply_change(kept, change, lay_over) for change in in_order(changes))
    newest_first = in_order(kept)[::-1]
    visible = visible_of(newest_first)
    others = tuple(version for version in newest_first if version is not visible)
    return Settled(visible, others, dropped)


def removes(statement: Version, version: Version) -> bool:
    """Tell whether a statement that empties a table on its shard removes a version."""
    own = range_of(statement.shard)
    if version.shard != statement.shard:
        if not own.overlaps(range_of(version.shard)):
            return False
        if version.home is not None and not own.contains(version.home):
            return False
    return statement.order > version.order and is_replaced(version, statement)


def no_stored_row(table: str, key: str, change: Version) -> CannotApply:
    """Return the error of a partial row image that meets no stored row."""
    return CannotApply(
        f"{table}, key {key}, shard {change.shard}, seq {change.seq}: the row image has only part "
        f"of its columns, and the target has no row to take the others from. Copy the table again "
        f"(`shardstream copy start`) into a new target, or set binlog_row_image=FULL and start "
        f"from a position after that. To store NULL in the others, start again with "
        f"--partial insert-nulls, which a --history does not allow. Or leave the table out, with "
        f"its history, by naming the others with --table"
    )
