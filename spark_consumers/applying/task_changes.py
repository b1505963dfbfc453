"""Turns the rows that a task of a sink's query gets into changes of tables. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.batch_statements import BatchStatements
from spark_consumers.applying.changes import (
    META,
    NOTHING_TOLD,
    OP,
    KnownTable,
    TableChanges,
    Told,
)
from spark_consumers.applying.evolution import (
    as_declared,
    check_renames,
    effective_renames,
    known_names,
    new_names,
    renamed,
    united,
    with_texts,
)
from spark_consumers.applying.on_truncate import OnTruncate, emptied
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.applying.reduce import reduce_changes
from spark_consumers.applying.removals import removed
from spark_consumers.applying.shadow_tables import is_shadow_table
from spark_consumers.applying.shard_columns import told_of, without_dropped
from spark_consumers.applying.statements import TableName
from spark_consumers.applying.tables import Removal
from spark_consumers.applying.unlogged import Unlogged, concerns, stop_at_unlogged
from spark_consumers.applying.versions import (
    Decoded,
    check_free_names,
    check_key,
    dates_of,
    ops_of_keys,
    versions_of_keys,
)
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.decoding.output_columns import arrow_type
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.errors import ShapeConflict
from topics.records.table_shape import TableShape

Name = tuple[str, str]  # database, table


@dataclass(frozen=True, slots=True)
class Following:
    """What a sink knows and accepts.

    `tables`: (database, table) of those that it follows; None: all but the shadow tables of online
    schema changes. `known`: those that it has. `accept_skip`: GTIDs of skipped transactions without
    which the tables are right, and of statements that change no values. `histories`: the tables of
    which it keeps every version. `drop_columns`: columns that no shard has any more are dropped.
    `on_unlogged`: gets the statements that changed rows which the sink or the batch has without
    logging them, and returns once a copy of each table has begun behind its statement.
    """

    tables: Collection[Name] | None = None
    known: Mapping[Name, KnownTable] = field(default_factory=dict)
    accept_skip: Collection[str] = ()
    on_type_change: OnTypeChange = OnTypeChange.HALT
    on_truncate: OnTruncate = OnTruncate.APPLY
    histories: Collection[Name] = ()
    on_partial: OnPartial = OnPartial.STOP
    drop_columns: bool = False
    on_unlogged: Callable[[Sequence[Unlogged]], None] = stop_at_unlogged

    def follows(self, name: Name) -> bool:
        """Tell whether the sink follows a table."""
        return not is_shadow_table(name[1]) if self.tables is None else name in self.tables

    def check_unlogged(self, statements: BatchStatements, rows: pa.Table) -> None:
        """Let tables be copied whose rows a statement changed that the sink or the batch has.

        `rows`: of the batch, of keys of the task.
        """
        found = [
            each
            for each in statements.to_be_copied()
            if self.follows(_name(each.what))
            and concerns(each, lambda what: _name(what) in self.known, rows)
        ]
        if found:
            self.on_unlogged(found)

    def check_removals(self, name: Name, removals: Sequence[Removal], versions: pa.Table) -> None:
        """CannotApply if statements remove rows that the sink or the batch has, and it is to stop.

        `versions`: of keys of the batch.
        """
        if not removals or self.on_truncate == OnTruncate.APPLY:
            return
        if name in self.known or pc.any(removed(removals, versions), min_count=0).as_py():
            raise emptied(".".join(name), removals[0].at)


def _name(what: TableName) -> Name:
    return what.database, what.table or ""


def changes_of(
    routed: pa.Table,
    decoder: RecordDecoder,
    *,
    partitions: int,
    task: int,
    following: Following | None = None,
) -> list[TableChanges]:
    """Return what the rows of one task change, per table, sorted by name.

    `routed`: rows of the source, in any order; its columns are `output_columns.SINK_COLUMNS`
    (`token` may be missing). Of a row that changed its key, only the key is returned that belongs
    to `task` of `partitions`; with one partition, everything is.

    CannotApply: a change or a statement that cannot be applied. ShapeConflict: see `evolution`.
    """
    following = following or Following()
    statements = BatchStatements.of(routed, following.accept_skip)
    rows = _own_rows(routed, partitions, task)
    by_table: dict[Name, list[Decoded]] = {}
    for schema_id in pc.unique(rows["schema_id"]).to_pylist():
        shape = decoder.shape(schema_id)
        name = (shape.database, shape.table)
        if following.follows(name):
            check_key(shape)
            own = _where(rows, pc.equal(rows["schema_id"], schema_id))
            by_table.setdefault(name, []).append(_decoded(own, shape, schema_id, decoder))
    concerned = {*by_table, *following.known, *statements.tables}
    names = {name for name in concerned if following.follows(name)}
    statements.check(names, following.follows)
    following.check_unlogged(statements, rows)
    told = told_of(routed, decoder, statements) if following.drop_columns else {}
    found = []
    for name in sorted(names):
        batch = _table_changes(
            *(name, by_table.get(name, []), statements, following), told.get(name, NOTHING_TOLD)
        )
        if batch.has_rows or batch.removals or batch.ended_copies or batch.renames or batch.told:
            found.append(batch)
    return found


def _table_changes(
    name: Name,
    parts: Sequence[Decoded],
    statements: BatchStatements,
    following: Following,
    told: Told,
) -> TableChanges:
    known = following.known.get(name, KnownTable(TableShape(*name, ())))
    renames = _renames(name, known, parts, statements)
    removals = statements.removals_of(name)
    shape, versions = _shape_and_rows(known, parts, renames, following.on_type_change)
    following.check_removals(name, removals, versions)
    if name not in following.histories:
        after = KnownTable(shape, known_names(known.renames, renames))
        versions = without_dropped(versions, told, after)
    return TableChanges(
        *name,
        shape,
        reduce_changes(".".join(name), versions, removals, following.on_partial),
        removals,
        statements.ended_copies_of(name),
        renames,
        _with_ops(versions, parts) if name in following.histories else None,
        told,
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


def _decoded(own: pa.Table, shape: TableShape, schema_id: int, decoder: RecordDecoder) -> Decoded:
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
    """ShapeConflict if a table has a column that is named as one of ours."""
    clash = sorted({column.name for column in shape.columns} & set(META.names))
    if clash:
        raise ShapeConflict(
            f"{shape.database}.{shape.table} has a column '{clash[0]}', which is the name of a "
            f"column that the target keeps for itself: rename the column, or leave the table out"
        )
