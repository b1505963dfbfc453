"""Turns the rows that a task of a sink's query gets into changes of tables. Pure."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sinks.rule.batch_statements import BatchStatements, Name, name_of
from sinks.rule.columns import (
    NO_REPORT,
    TEXT_SUFFIX,
    ColumnReport,
    KnownTable,
    as_declared,
    check_renames,
    column_reports,
    effective_renames,
    key_names,
    known_names,
    new_names,
    places,
    renamed,
    united,
    with_texts,
    without_dropped,
)
from sinks.rule.homes import META, OP, Version
from sinks.rule.policy import OnTruncate, OnTypeChange, RowPolicy
from sinks.rule.statements import Unlogged, concerns, stop_at_unlogged
from sinks.rule.upserts import Flags, Numbers, flags_of, reduce_changes, removed
from topics.arrow.decoders import TableDecoder
from topics.arrow.output_columns import arrow_type
from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import TableShape


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What a batch changes in one table, as far as it concerns one task.

    `shape`: the columns of the known table and of all versions in the batch, united by name, each
    as wide as the widest; without columns if the table is not known and the batch has no row of it.

    `rows`: META, then the columns of `shape` by name, typed by `output_columns.arrow_type`. At most
    one row per key and home: the last change in merged order. A tombstone has the columns of its
    key, all others are null.

    `removals`: the places of TRUNCATE and DROP in merged order. They are to be applied to stored
    rows before `rows`, from which rows that they removed are gone already.

    `ended_copies`: shards whose copy of the table was completed.

    `renames`: (shard, old name, new name) of columns, in merged order.

    `versions`: where the sink keeps a history of the table, what every change of the batch leaves,
    in any order: columns as `rows`, then OP, the op of the change. None where it keeps none.

    `report`: which columns the shards have.
    """

    database: str
    table: str
    shape: TableShape
    rows: pa.Table
    removals: tuple[Version, ...] = ()
    ended_copies: tuple[str, ...] = ()
    renames: tuple[tuple[str, str, str], ...] = ()
    versions: pa.Table | None = None
    report: ColumnReport = NO_REPORT

    @property
    def has_rows(self) -> bool:
        """Whether it changes rows; for a history also if the batch has removed them all again."""
        return self.rows.num_rows > 0 or (self.versions is not None and self.versions.num_rows > 0)


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows of one table version.

    `rows`: columns of `TableDecoder.decode`. `tokens`: per row, None where the query reads none.
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
        if flags_of(pc.and_(pc.equal(rows["shard"], shard), pc.less(rows["seq"], seq))).any():
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
    texts = decoded.rows["invalid_dates"].drop_null().to_pylist()
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
    tombstone at the old one. CannotApply: a key or a home is not known, because a row image has
    only part of its columns.
    """
    rows = decoded.rows
    _check_images(decoded)
    is_deleted = flags_of(pc.is_null(rows["after"]))
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
    moved = _changes_home(rows) & decoded.has_key & flags_of(pc.is_null(rows["old_key"]))
    return (
        np.flatnonzero(decoded.has_key),
        np.flatnonzero(decoded.has_old_key),
        np.flatnonzero(moved),
    )


def _changes_home(rows: pa.RecordBatch) -> Flags:
    differs = pc.not_equal(rows["keyspace_id_before"], rows["keyspace_id_after"])
    return flags_of(pc.fill_null(differs, False)) & _is_update(rows)


def _is_update(rows: pa.RecordBatch) -> Flags:
    return flags_of(pc.and_(pc.is_valid(rows["before"]), pc.is_valid(rows["after"])))


def _home_after(rows: pa.RecordBatch) -> pa.Array:
    """Return where each row is at home afterwards.

    An image that leaves out the sharding column has no keyspace id. Then the row's home is the one
    before; if that is unknown too, so is the home, and the key ranges of shards decide.
    """
    before, after = rows["keyspace_id_before"], rows["keyspace_id_after"]
    partial = _is_update(rows) & flags_of(pc.is_valid(rows["absent"]))
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
    found: dict[str, list[str | None]] = {}
    names = _target_names(decoded, into)
    rows = decoded.rows["invalid_dates"]
    for i in np.flatnonzero(flags_of(pc.is_valid(rows))):
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
    for i in np.flatnonzero(flags_of(pc.is_valid(rows))):
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
    without_key = own & flags_of(pc.is_null(rows["key"]))
    if without_key.any():
        row = int(np.flatnonzero(without_key)[0])
        if rows["invalid_dates"][row].is_valid:
            raise CannotApply(
                f"{_place(decoded, row)}: the primary key of a row holds an invalid date, which is "
                f"NULL in a target. Leave the table out: name the others with --table"
            )
        raise _not_applicable(decoded, row, "lacks its primary key")
    moves = _changes_home(rows) | (flags_of(pc.is_valid(rows["old_key"])) & _is_update(rows))
    own_names = [column.name for column in rows.schema.field("after").type]
    key = {own_names[i] for i in decoded.shape.primary_key}
    for i in np.flatnonzero(moves & own & flags_of(pc.is_valid(rows["absent"]))):
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


@dataclass(frozen=True, slots=True)
class FollowedTables:
    """The tables that a sink has, and how it follows their changes.

    `known`: those that it has. `histories` (`database.table`): those of which it keeps every
    version. `on_unlogged`: gets the statements that changed rows which the sink or the batch has
    without logging them, and returns once a copy of each table has begun behind its statement.
    """

    known: Mapping[Name, KnownTable] = field(default_factory=dict)
    policy: RowPolicy = field(default_factory=RowPolicy)
    histories: Collection[str] = ()
    on_unlogged: Callable[[Sequence[Unlogged]], None] = stop_at_unlogged

    def check_unlogged(self, statements: BatchStatements, rows: pa.Table) -> None:
        """Let tables be copied whose rows a statement changed that the sink or the batch has.

        `rows`: of the batch, of keys of the task.
        """
        found = [
            each
            for each in statements.to_be_copied()
            if self.policy.follows(name_of(each.what))
            and concerns(each, lambda what: name_of(what) in self.known, rows)
        ]
        if found:
            self.on_unlogged(found)

    def check_removals(self, name: Name, removals: Sequence[Version], versions: pa.Table) -> None:
        """CannotApply if statements remove rows that the sink or the batch has, and it is to stop.

        `versions`: of keys of the batch.
        """
        if not removals or self.policy.on_truncate is OnTruncate.APPLY:
            return
        if name in self.known or pc.any(removed(removals, versions), min_count=0).as_py():
            at = removals[0]
            raise CannotApply(
                f"{'.'.join(name)}, shard {at.shard}, seq {at.seq}: TRUNCATE, DROP or CREATE OR "
                f"REPLACE emptied the table on this shard, and --on-truncate is stop. The target "
                f"still has the rows. To remove those of this shard, start again with "
                f"--on-truncate apply; to keep them, leave the table out of a new target, or start "
                f"one from a copy once the shard has them again"
            )


def changes_of(
    routed: pa.Table,
    decoder: TableDecoder,
    *,
    partitions: int,
    task: int,
    followed: FollowedTables | None = None,
) -> list[TableChanges]:
    """Return what the rows of one task change, per table, sorted by name.

    `routed`: rows of the source, in any order; its columns are `output_columns.SINK_COLUMNS`
    (`token` may be missing). Of a row that changed its key, only the key is returned that belongs
    to `task` of `partitions`; with one partition, everything is.

    CannotApply: a change or a statement that cannot be applied. ShapeConflict: see `columns`.
    """
    followed = followed or FollowedTables()
    policy = followed.policy
    statements = BatchStatements.of(routed, policy.accept_skip)
    rows = _own_rows(routed, partitions, task)
    by_table: dict[Name, list[Decoded]] = {}
    for schema_id in pc.unique(rows["schema_id"]).to_pylist():
        shape = decoder.shape(schema_id)
        name = (shape.database, shape.table)
        if policy.follows(name):
            check_key(shape)
            own = _where(rows, pc.equal(rows["schema_id"], schema_id))
            by_table.setdefault(name, []).append(_decoded(own, shape, schema_id, decoder))
    concerned = {*by_table, *followed.known, *statements.tables}
    names = {name for name in concerned if policy.follows(name)}
    statements.check_all(names, policy.follows)
    followed.check_unlogged(statements, rows)
    reports = column_reports(routed, decoder, statements) if policy.drop_columns else {}
    found = []
    for name in sorted(names):
        batch = _table_changes(
            *(name, by_table.get(name, []), statements, followed), reports.get(name, NO_REPORT)
        )
        if batch.has_rows or batch.removals or batch.ended_copies or batch.renames or batch.report:
            found.append(batch)
    return found


def _table_changes(
    name: Name,
    parts: Sequence[Decoded],
    statements: BatchStatements,
    followed: FollowedTables,
    report: ColumnReport,
) -> TableChanges:
    known = followed.known.get(name, KnownTable(TableShape(*name, ())))
    renames = _renames(name, known, parts, statements)
    removals = statements.removals_of(name)
    shape, versions = _shape_and_rows(known, parts, renames, followed.policy.on_type_change)
    followed.check_removals(name, removals, versions)
    has_history = ".".join(name) in followed.histories
    if not has_history:
        after = KnownTable(shape, known_names(known.renames, renames))
        versions = without_dropped(versions, report, after)
    return TableChanges(
        *name,
        shape,
        reduce_changes(".".join(name), versions, removals, followed.policy.on_partial),
        removals,
        statements.ended_copies_of(name),
        renames,
        _with_ops(versions, parts) if has_history else None,
        report,
    )


def _with_ops(versions: pa.Table, parts: Iterable[Decoded]) -> pa.Table:
    ops = pa.chunked_array([ops_of_keys(part) for part in parts], pa.string())
    return versions.append_column(OP, ops)


def _own_rows(routed: pa.Table, partitions: int, task: int) -> pa.Table:
    """Return the ROW records of a task, each once, with columns `has_key` and `has_old_key`."""
    rows = _where(routed, pc.equal(routed["type"], "ROW"))
    flags = {}
    for column, name in (("key_hash", "has_key"), ("old_key_hash", "has_old_key")):
        hashes = rows[column].combine_chunks()
        own = np.mod(pc.fill_null(hashes, 0).to_numpy(), partitions) == task
        # A row without a key is refused by name later.
        flags[name] = own & (
            pc.is_valid(hashes).to_numpy(zero_copy_only=False) | (name == "has_key")
        )
    if "route" in rows.column_names:
        # A row whose keys both belong to the task came once for each.
        again = flags["has_key"] & flags["has_old_key"]
        again &= pc.fill_null(pc.not_equal(rows["route"], rows["key_hash"]), False).to_numpy()
    else:
        again = np.zeros(rows.num_rows, np.bool_)
    for name, own in flags.items():
        rows = rows.append_column(name, pa.array(own))
    return _where(rows, pa.array(~again))


def _where(rows: pa.Table, flags: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return the rows whose flags are set: mostly all, and then nothing is copied."""
    return rows if pc.all(flags, skip_nulls=False, min_count=0).as_py() else rows.filter(flags)


def _decoded(own: pa.Table, shape: TableShape, schema_id: int, decoder: TableDecoder) -> Decoded:
    own = own.combine_chunks()
    rows = decoder.decode(schema_id, own["record"].to_pylist(), own["op"].combine_chunks())
    return Decoded(
        shape,
        rows,
        own["token"].combine_chunks() if "token" in own.column_names else None,
        own["has_key"].to_numpy(),
        own["has_old_key"].to_numpy(),
        pc.or_(own["late"], own["possible_duplicate"]).to_numpy(),
    )


def _renames(
    name: Name, known: KnownTable, parts: Sequence[Decoded], statements: BatchStatements
) -> tuple[tuple[str, str, str], ...]:
    """Return the renames of a table's columns, by the names that its versions have.

    ShapeConflict: rows from before one of them have a column of the new name as well.
    """
    for part in parts:
        check_free_names(part, statements.placed_renames_of(name))
    shapes = (known.shape, *(part.shape for part in parts))
    names = [column.name for shape in shapes for column in shape.columns]
    return as_declared(statements.renames_of(name), [*known.renames, *names])


def _shape_and_rows(
    known: KnownTable,
    parts: Iterable[Decoded],
    renames: tuple[tuple[str, str, str], ...],
    on_type_change: OnTypeChange,
) -> tuple[TableShape, pa.Table]:
    """Return the columns of a table after a batch, and the versions of keys in it."""
    check_renames(known, renames)
    steps = new_names(effective_renames(known.shape, renames))
    names = known_names(known.renames, renames)
    parts = [replace(part, shape=renamed(part.shape, names)) for part in parts]
    shape = renamed(known.shape, steps)
    for part in parts:
        shape = united(shape, part.shape, on_type_change)
    shape = with_texts(shape, {name for part in parts for name in dates_of(part, shape)})
    _check_names(shape)
    fields = [pa.field(column.name, arrow_type(column)) for column in shape.columns]
    empty = pa.schema([*META, *fields]).empty_table()
    versions = pa.concat_tables([empty, *(versions_of_keys(part, shape) for part in parts)])
    return shape, versions


def _check_names(shape: TableShape) -> None:
    clash = sorted({column.name for column in shape.columns} & set(META.names))
    if clash:
        raise ShapeConflict(
            f"{shape.database}.{shape.table} has a column '{clash[0]}', which is the name of a "
            f"column that the target keeps for itself: rename the column, or leave the table out"
        )
