"""What a task remembers of rows that may move between shards, and what a DELETE of one does. Pure.

A topic holds one record per key, and for a while a key may have rows in two homes: the application
inserts the row on one shard and deletes it on the other, each at a time of its own clock. The
DELETE must not end the key's record while the other home's row is live. So the INSERTs of the last
minutes are remembered by home, with their place in the shard log, and all changes of their keys.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from event_token import KeyRange
from sinks.errors import TargetConflict
from sinks.rule.homes import Version, add_version, live_homes, range_of, version_at
from sinks.same_keys import SAME_KEYS_MAX, SameKey
from topics.records.table_shape import TableShape
from topics.records.vevent import Op

# Looked up once: rows are many.
_INSERT = Op.INSERT.value
_DELETE = Op.DELETE.value
# The table, and the JSON text of the key.
RowKey = tuple[str, str]


class MoveAction(Enum):
    """What becomes of a change, unless the row of another home is written in its place."""

    WRITE = "write"
    LEAVE_OUT = "leave out"


@dataclass(frozen=True, slots=True)
class RecordPlace:
    """Where a record lies."""

    shard: str
    offset: int


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

    def decide(
        self, key: RowKey, changes: Sequence[Version], *, is_insert: bool
    ) -> MoveAction | RecordPlace:
        """Take what one record leaves at a key; return what becomes of it.

        A place is that of the row to write in the place of a DELETE.

        An update that changes the home leaves two versions. Only an INSERT makes a key known.
        """
        known = self._homes.get(key)
        if known is None:
            if not is_insert:
                return MoveAction.WRITE
            if len(changes) == 1:  # nearly always: no other home to compare it with
                self._homes[key] = [*changes]
                return MoveAction.WRITE
            known = self._homes[key] = []
        before = live_homes(known)
        for change in changes:
            add_version(known, change)
        after = live_homes(known)
        if not after:
            # Without a row in memory the key has the one that is deleted here.
            return MoveAction.WRITE
        if before and after[0] == before[0]:
            return MoveAction.LEAVE_OUT
        visible = after[0]
        if any(visible is change for change in changes):
            return MoveAction.WRITE
        return RecordPlace(visible.shard, _number(visible.row))

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


# Of each table with a vindex, the columns that it takes: `database.table` -> names.
Vindexes = Mapping[str, Collection[str]]
_EVERYTHING = KeyRange.parse("-")


@dataclass(slots=True)
class MoveResult:
    """Halves of rows, by row number, that are left out, and rows that are written in their place.

    A DELETE is an old half, and so is the DELETE of a changed key; everything else is a new one.
    """

    without_old: set[int] = field(default_factory=set)
    without_new: set[int] = field(default_factory=set)
    others: list[tuple[int, RecordPlace]] = field(default_factory=list)


def stays_at_home(shape: TableShape, vindexes: Vindexes) -> bool:
    """Tell whether a row's primary key determines its keyspace id, so that it cannot move."""
    columns = vindexes.get(f"{shape.database}.{shape.table}")
    key = {shape.columns[i].name for i in shape.primary_key}
    return columns is not None and key.issuperset(columns)


def apply_moves(homes: RecentHomes, rows: pa.Table) -> MoveResult:
    """Return what becomes of rows that may move; they come in merged order.

    Columns of `rows`: row (the number that the result names), table (`database.table`), old_half
    and new_half (whether they are this task's), offset, and those of decoded rows.
    """
    result = MoveResult()
    for row in _concerned(homes, rows).to_pylist():
        ids = {row["keyspace_id_before"], row["keyspace_id_after"]}
        is_alone = ids == {None} and range_of(row["shard"]) == _EVERYTHING
        if not is_alone:
            _apply(homes, row, result)
    return result


def _concerned(homes: RecentHomes, rows: pa.Table) -> pa.Table:
    """Leave out updates and deletes of keys without a recent INSERT, in bulk: they are written."""
    begins = pc.or_(pc.equal(rows["op"], _INSERT), rows["old_key"].is_valid())
    begun = rows["key"].filter(begins).combine_chunks()
    keys = pa.concat_arrays([begun, pa.array(homes.keys(), pa.string())])
    return rows.filter(pc.or_(begins, pc.is_in(rows["key"], value_set=keys)))


def _apply(homes: RecentHomes, row: Mapping[str, Any], result: MoveResult) -> None:
    table, key, old_key = str(row["table"]), str(row["key"]), row["old_key"]
    before, after = row["keyspace_id_before"], row["keyspace_id_after"]
    number = row["row"]
    is_delete = row["op"] == _DELETE
    gone = version_at(row, before)
    if is_delete or (old_key is not None and row["old_half"]):
        _apply_end(homes, (table, key if is_delete else str(old_key)), gone, number, result)
    if is_delete or not row["new_half"]:
        return
    is_insert = row["op"] == _INSERT or old_key is not None
    if not is_insert and not homes.knows((table, key)):
        return
    changes = [version_at(row, after, row["offset"])]
    if old_key is None and None not in {before, after} and before != after:
        changes.append(gone)
    if homes.decide((table, key), changes, is_insert=is_insert) is not MoveAction.WRITE:
        result.without_new.add(number)


def _apply_end(
    homes: RecentHomes, key: RowKey, gone: Version, number: int, result: MoveResult
) -> None:
    decided = homes.decide(key, [gone], is_insert=False)
    if decided is MoveAction.WRITE:
        return
    result.without_old.add(number)
    if isinstance(decided, RecordPlace):
        result.others.append((number, decided))
