"""Turns decoded rows of one table version into versions of keys: upserts and tombstones. Pure."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import META
from spark_consumers.applying.evolution import TEXT_SUFFIX, key_names, places
from spark_consumers.decoding.output_columns import arrow_type
from spark_consumers.errors import CannotApply, ShapeConflict
from topics.records.table_shape import TableShape

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one table version.

    `rows`: columns of `RecordDecoder.decode`. `tokens`: per row, None where the query reads none.
    `has_key`, `has_old_key`: whether the key that a row has, and the one it had before, belong to
    this task. `compare`: whether a row was late or a possible duplicate.
    """

    shape: TableShape
    rows: pa.RecordBatch
    tokens: pa.Array | None
    has_key: Flags
    has_old_key: Flags
    compare: Flags


def check_key(shape: TableShape) -> None:
    """CannotApply if a table has no primary key."""
    if not shape.primary_key:
        raise CannotApply(
            f"{shape.database}.{shape.table} has no primary key, so its rows cannot be told "
            f"apart: leave it out by naming the other tables with --table, or add a primary key "
            f"and start a new target from a copy taken after that"
        )


def check_free_names(decoded: Decoded, renames: Iterable[tuple[str, int, str, str]]) -> None:
    """ShapeConflict if a column got a name that another one had, of rows from before that.

    `renames`: (shard, seq, old name, new name). Columns belong together by name, and the rows of
    one column would keep their values under the name of another one.
    """
    names = {column.name.lower() for column in decoded.shape.columns}
    for shard, seq, old, new in renames:
        if old.lower() == new.lower() or not {old.lower(), new.lower()} <= names:
            continue
        rows = decoded.rows
        if _flags(pc.and_(pc.equal(rows["shard"], shard), pc.less(rows["seq"], seq))).any():
            raise ShapeConflict(
                f"{decoded.shape.database}.{decoded.shape.table}, shard {shard}, seq {seq}: column "
                f"'{old}' was renamed to '{new}', the name of another column that was renamed or "
                f"dropped before, and by name the values of both cannot be told apart. Start a "
                f"new target from a copy taken after all shards were altered"
            )


def dates_of(decoded: Decoded, into: TableShape) -> set[str]:
    """Return the columns of `into` that get an invalid date.

    ShapeConflict if the table has a column of the name that the dates' texts would get.
    """
    names = _target_names(decoded, into)
    texts = decoded.rows["off_calendar"].drop_null().to_pylist()
    found = {names[name] for text in texts for name in json.loads(text).get("after") or ()}
    own = {name.lower() for name in names.values()}
    taken = sorted(name for name in found if (name + TEXT_SUFFIX).lower() in own)
    if taken:
        raise ShapeConflict(
            f"{into.database}.{into.table}: column '{taken[0]}' has an invalid date, whose text "
            f"would go to '{taken[0]}{TEXT_SUFFIX}', but the table has a column of that name: "
            f"correct the date, rename that column, or leave the table out"
        )
    return found


def _target_names(decoded: Decoded, into: TableShape) -> dict[str, str]:
    """Return the name in `into` of each column, by the name that it has in the records."""
    own = [column.name for column in decoded.rows.schema.field("after").type]
    return dict(zip(own, places(decoded.shape, into), strict=True))


def versions_of_keys(decoded: Decoded, into: TableShape) -> pa.Table:
    """Return META and the columns of `into`, one row for each key or home that a change concerns.

    `into` is united with the rows' own version. A change of the key or of the home leaves a
    tombstone at the old one. CannotApply: a key or a home cannot be told, because a row image has
    only part of its columns.
    """
    rows = decoded.rows
    _check_images(decoded)
    is_deleted = _flags(pc.is_null(rows["after"]))
    now, renamed, moved = _chosen(decoded)
    numbers = np.concatenate([now, renamed, moved])
    tombstones = np.concatenate([is_deleted[now], np.ones(len(renamed) + len(moved), np.bool_)])
    key = pa.concat_arrays(
        [rows["key"].take(now), rows["old_key"].take(renamed), rows["key"].take(moved)]
    )
    home = _of_image(rows["keyspace_id_before"], _home_after(rows), numbers, tombstones)
    absent = _absent(decoded, into)
    found = [
        key,
        home,
        *(rows[name].take(numbers) for name in ("shard", "seq", "timestamp_us")),
        pa.array(tombstones),
        pa.nulls(len(numbers), pa.string())
        if decoded.tokens is None
        else decoded.tokens.take(numbers),
        pa.array(decoded.compare[numbers]),
        absent.take(pa.array(numbers, mask=tombstones)),
    ]
    columns = _columns(decoded, into, numbers, tombstones)
    fields = [pa.field(column.name, arrow_type(column)) for column in into.columns]
    return pa.Table.from_arrays([*found, *columns], schema=pa.schema([*META, *fields]))


def ops_of_keys(decoded: Decoded) -> pa.Array:
    """Return the op of the change behind each row of `versions_of_keys`."""
    return decoded.rows["op"].take(np.concatenate(_chosen(decoded)))


def _chosen(decoded: Decoded) -> tuple[Numbers, Numbers, Numbers]:
    """Return which rows leave something at their key, at their old key and at their old home."""
    rows = decoded.rows
    moved = _changes_home(rows) & decoded.has_key & _flags(pc.is_null(rows["old_key"]))
    return (
        np.flatnonzero(decoded.has_key),
        np.flatnonzero(decoded.has_old_key),
        np.flatnonzero(moved),
    )


def _changes_home(rows: pa.RecordBatch) -> Flags:
    """Tell where an UPDATE changes the keyspace id."""
    differs = pc.not_equal(rows["keyspace_id_before"], rows["keyspace_id_after"])
    return _flags(pc.fill_null(differs, False)) & _is_update(rows)


def _is_update(rows: pa.RecordBatch) -> Flags:
    return _flags(pc.and_(pc.is_valid(rows["before"]), pc.is_valid(rows["after"])))


def _home_after(rows: pa.RecordBatch) -> pa.Array:
    """Return where each row is at home afterwards.

    An image that leaves out the sharding column has no keyspace id. Then the row's home is the one
    before; if that is unknown too, so is the home, and the key ranges of shards decide.
    """
    before, after = rows["keyspace_id_before"], rows["keyspace_id_after"]
    partial = _is_update(rows) & _flags(pc.is_valid(rows["absent"]))
    if not partial.any():
        return after
    either = pc.if_else(pc.is_valid(before), pc.coalesce(after, before), before)
    return pc.if_else(pa.array(partial), either, after)


def _columns(
    decoded: Decoded, into: TableShape, numbers: Numbers, tombstones: Flags
) -> list[pa.Array]:
    names = places(decoded.shape, into)
    before = dict(zip(names, decoded.rows["before"].flatten(), strict=True))
    after = dict(zip(names, decoded.rows["after"].flatten(), strict=True))
    live = pa.array(numbers, mask=tombstones)
    texts = _date_texts(decoded, into)
    key = key_names(into)
    columns = []
    for column in into.columns:
        kind = arrow_type(column)
        if column.name in key:
            # An image of a changed row may leave out a key that stayed the same.
            now = pc.coalesce(after[column.name], before[column.name])
            values = _of_image(before[column.name], now, numbers, tombstones)
        elif column.name in after:
            values = after[column.name].take(live)
        elif column.name in texts:
            values = texts[column.name].take(live)
        else:
            values = pa.nulls(len(numbers), kind)
        columns.append(values if values.type == kind else values.cast(kind))
    return columns


def _of_image(before: pa.Array, after: pa.Array, numbers: Numbers, is_before: Flags) -> pa.Array:
    """Take rows of one of two arrays of equal length."""
    if not is_before.any():
        return after.take(numbers)
    return pa.concat_arrays([before, after]).take(
        np.where(is_before, numbers, numbers + len(after))
    )


def _date_texts(decoded: Decoded, into: TableShape) -> dict[str, pa.Array]:
    """Return the text columns of invalid dates by name."""
    found: dict[str, list[str | None]] = {}
    names = _target_names(decoded, into)
    rows = decoded.rows["off_calendar"]
    for i in np.flatnonzero(_flags(pc.is_valid(rows))):
        for column, text in (json.loads(rows[i].as_py()).get("after") or {}).items():
            texts = found.setdefault(names[column] + TEXT_SUFFIX, [None] * len(rows))
            texts[i] = text
    return {name: pa.array(texts, pa.string()) for name, texts in found.items()}


def _absent(decoded: Decoded, into: TableShape) -> pa.Array:
    """Return the columns, as `into` names them, that the image of each changed row lacks."""
    kind = META.field("_absent").type
    rows = decoded.rows["absent"]
    if rows.null_count == len(rows):
        return pa.nulls(len(rows), kind)
    names = _target_names(decoded, into)
    with_text = {column.name for column in into.columns}
    key = key_names(into)
    found: list[list[str] | None] = [None] * len(rows)
    for i in np.flatnonzero(_flags(pc.is_valid(rows))):
        absent = [names[n] for n in _absent_after(rows[i].as_py()) if names[n] not in key]
        texts = [n + TEXT_SUFFIX for n in absent if n + TEXT_SUFFIX in with_text]
        found[i] = [*absent, *texts] or None
    return pa.array(found, kind)


def _absent_after(text: str) -> Sequence[str]:
    found: list[str] = json.loads(text)["after"]
    return found


def _check_images(decoded: Decoded) -> None:
    """CannotApply where a partial image hides which row is changed."""
    rows = decoded.rows
    own = decoded.has_key | decoded.has_old_key
    without_key = own & _flags(pc.is_null(rows["key"]))
    if without_key.any():
        row = int(np.flatnonzero(without_key)[0])
        if rows["off_calendar"][row].is_valid:
            raise CannotApply(
                f"{_place(decoded, row)}: the primary key of a row holds an invalid date, which is "
                f"NULL in a target. Leave the table out: name the others with --table"
            )
        raise _not_applicable(decoded, row, "lacks its primary key")
    moves = _changes_home(rows) | (_flags(pc.is_valid(rows["old_key"])) & _is_update(rows))
    own_names = [column.name for column in rows.schema.field("after").type]
    key = {own_names[i] for i in decoded.shape.primary_key}
    for i in np.flatnonzero(moves & own & _flags(pc.is_valid(rows["absent"]))):
        if set(_absent_after(rows["absent"][i].as_py())) - key:
            raise _not_applicable(decoded, int(i), "moves it, and has only part of its columns")


def _not_applicable(decoded: Decoded, row: int, what: str) -> CannotApply:
    return CannotApply(
        f"{_place(decoded, row)}: the image of a row {what}. Set binlog_row_image=FULL and "
        f"start a new target from a copy taken after that"
    )


def _place(decoded: Decoded, row: int) -> str:
    found = decoded.rows
    table = f"{decoded.shape.database}.{decoded.shape.table}"
    return f"{table}, shard {found['shard'][row]}, seq {found['seq'][row]}"


def _flags(flags: pa.Array) -> Flags:
    return np.array(flags.to_numpy(zero_copy_only=False), dtype=np.bool_)
