"""Applies the rule of moves to decoded rows: which messages stay, and which rows come back."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from event_token import KeyRange
from spark_consumers.applying.homes import Version, range_of
from spark_consumers.table_topics.moves import Fate, Place, RecentHomes, RowKey
from topics.records.table_shape import TableShape
from topics.records.vevent import Op

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
    others: list[tuple[int, Place]] = field(default_factory=list)


def stays_at_home(shape: TableShape, vindexes: Vindexes) -> bool:
    """Tell whether a row's primary key determines its keyspace id, so that it cannot move."""
    columns = vindexes.get(f"{shape.database}.{shape.table}")
    key = {shape.columns[i].name for i in shape.primary_key}
    return columns is not None and key.issuperset(columns)


def judge_moves(homes: RecentHomes, rows: pa.Table) -> MoveResult:
    """Return what becomes of rows that may move; they come in merged order.

    Columns of `rows`: row (the number that the result names), table (`database.table`), old_half
    and new_half (whether they are this task's), offset, and those of decoded rows.
    """
    result = MoveResult()
    for row in _concerned(homes, rows).to_pylist():
        ids = {row["keyspace_id_before"], row["keyspace_id_after"]}
        is_alone = ids == {None} and range_of(row["shard"]) == _EVERYTHING
        if not is_alone:
            _judge(homes, row, result)
    return result


def _concerned(homes: RecentHomes, rows: pa.Table) -> pa.Table:
    """Leave out updates and deletes of keys without a recent INSERT, in bulk: they are written."""
    begins = pc.or_(pc.equal(rows["op"], Op.INSERT.value), rows["old_key"].is_valid())
    begun = rows["key"].filter(begins).combine_chunks()
    keys = pa.concat_arrays([begun, pa.array(homes.keys(), pa.string())])
    return rows.filter(pc.or_(begins, pc.is_in(rows["key"], value_set=keys)))


def _judge(homes: RecentHomes, row: Mapping[str, object], result: MoveResult) -> None:
    table, key, old_key = str(row["table"]), str(row["key"]), row["old_key"]
    before, after = _bytes(row["keyspace_id_before"]), _bytes(row["keyspace_id_after"])
    number = int(str(row["row"]))
    is_delete = row["op"] == Op.DELETE.value
    gone = _version(row, before, None)
    if is_delete or (old_key is not None and row["old_half"]):
        _judge_end(homes, (table, key if is_delete else str(old_key)), gone, number, result)
    if is_delete or not row["new_half"]:
        return
    is_insert = row["op"] == Op.INSERT.value or old_key is not None
    if not is_insert and not homes.knows((table, key)):
        return
    changes = [_version(row, after, row["offset"])]
    if old_key is None and None not in {before, after} and before != after:
        changes.append(gone)
    if homes.decide((table, key), changes, is_insert=is_insert).fate is not Fate.WRITE:
        result.without_new.add(number)


def _judge_end(
    homes: RecentHomes, key: RowKey, gone: Version, number: int, result: MoveResult
) -> None:
    decided = homes.decide(key, [gone], is_insert=False)
    if decided.fate is Fate.WRITE:
        return
    result.without_old.add(number)
    if decided.other is not None:
        result.others.append((number, decided.other))


def _version(row: Mapping[str, object], home: bytes | None, place: object) -> Version:
    return Version(
        str(row["shard"]), int(str(row["seq"])), int(str(row["timestamp_us"])), home, place
    )


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
