"""What a task remembers of rows that may move between shards, and what a DELETE of one does. Pure.

A topic holds one record per key, and for a while a key may have rows in two homes: the application
inserts the row on one shard and deletes it on the other, each at a time of its own clock. The
DELETE must not end the key's record while the other home's row is live. So the INSERTs of the last
minutes are remembered by home, with their place in the shard log, and all changes of their keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import cast

from spark_consumers.applying.homes import Version, add_version, live_homes
from spark_consumers.errors import TargetConflict
from spark_consumers.sink_query.same_keys import SAME_KEYS_MAX, SameKey

# Each takes some 150 bytes in every marker of its task.
MOVES_MAX_DEFAULT = 20_000
# An application that moves a row does so within seconds; clocks differ by less.
MOVE_WINDOW_US_DEFAULT = 10 * 60 * 1_000_000

# The table, and the JSON text of the key.
RowKey = tuple[str, str]


class Fate(Enum):
    """What becomes of a change: it is written, left out, or the other home's row is written."""

    WRITE = "write"
    LEAVE_OUT = "leave out"
    WRITE_OTHER = "write other"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies."""

    shard: str
    offset: int


@dataclass(frozen=True, slots=True)
class Decided:
    """The fate of a change; `other` is the row to write in the place of a DELETE."""

    fate: Fate
    other: Place | None = None


_WRITE = Decided(Fate.WRITE)
_LEAVE_OUT = Decided(Fate.LEAVE_OUT)


class RecentHomes:
    """The recent homes of keys. Changes come in merged order.

    The `row` of a version is the offset of its record, None after a DELETE.
    """

    def __init__(self, stored: Iterable[object] = ()) -> None:
        """Begin with what `to_json` returned."""
        self._homes: dict[RowKey, list[Version]] = {}
        for entry in stored:
            table, key, versions = cast("tuple[str, str, list[list[object]]]", entry)
            self._homes[table, key] = [_version(fields) for fields in versions]

    def knows(self, key: RowKey) -> bool:
        """Tell whether the key had an INSERT within the window."""
        return key in self._homes

    def keys(self) -> list[str]:
        """Return the keys that are known, of all tables."""
        return [key for _, key in self._homes]

    def decide(self, key: RowKey, changes: Iterable[Version], *, is_insert: bool) -> Decided:
        """Take what one record leaves at a key; return what becomes of it.

        An update that changes the home leaves two versions. Only an INSERT makes a key known.
        """
        known = self._homes.get(key)
        if known is None:
            if not is_insert:
                return _WRITE
            known = self._homes[key] = []
        before = live_homes(known)
        for change in changes:
            add_version(known, change)
        after = live_homes(known)
        if not after:
            # Without a row in memory the key has the one that is deleted here.
            return _WRITE
        if before and after[0] == before[0]:
            return _LEAVE_OUT
        visible = after[0]
        if any(visible is change for change in changes):
            return _WRITE
        return Decided(Fate.WRITE_OTHER, Place(visible.shard, _number(visible.row)))

    def same_keys(self, time_us: int) -> list[SameKey]:
        """Return keys that have several live rows and whose last change is older."""
        found = []
        for (table, key), versions in self._homes.items():
            live = live_homes(versions) if _last_us(versions) < time_us else []
            if len(live) > 1:
                found.append(SameKey(table, key, tuple(sorted(home.shard for home in live))))
        return found[:SAME_KEYS_MAX]

    def forget_before(self, time_us: int, *, but_same_keys: bool = False) -> None:
        """Forget keys whose last change is older; `but_same_keys`: not those of `same_keys`."""
        self._homes = {
            key: versions
            for key, versions in self._homes.items()
            if _last_us(versions) >= time_us or (but_same_keys and len(live_homes(versions)) > 1)
        }

    def check_number(self, moves_max: int, where: str) -> None:
        """TargetConflict when more keys are remembered than `moves_max`."""
        if len(self._homes) > moves_max:
            tables = sorted({table for table, _ in self._homes})
            raise TargetConflict(
                f"{where}: {len(self._homes)} rows were inserted within --move-window into tables "
                f"whose rows may move between shards ({', '.join(tables)}), and at most "
                f"{moves_max} are remembered. Raise --moves-max, shorten --move-window to the "
                f"longest time that a move takes, or leave the tables out"
            )

    def to_json(self) -> tuple[object, ...]:
        """Return what the next batch begins with, as plain JSON values."""
        return tuple(
            [table, key, [_fields(version) for version in versions]]
            for (table, key), versions in self._homes.items()
        )


def _last_us(versions: Iterable[Version]) -> int:
    return max(version.timestamp_us for version in versions)


def _fields(version: Version) -> list[object]:
    home = None if version.home is None else version.home.hex()
    return [version.shard, version.seq, version.timestamp_us, home, version.row]


def _version(fields: list[object]) -> Version:
    shard, seq, timestamp_us, home, row = fields
    return Version(
        str(shard),
        _number(seq),
        _number(timestamp_us),
        None if home is None else bytes.fromhex(str(home)),
        row,
    )


def _number(value: object) -> int:
    return int(cast("int", value))
