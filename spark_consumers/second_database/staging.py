"""Stages the changes of one task: one table of the target per table of the batch."""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from event_token.errors import UsageError
from spark_consumers.applying.changes import (
    ABSENT,
    COMPARE,
    DELETED,
    KEY,
    META,
    NOTHING_TOLD,
    TableChanges,
    Told,
)
from spark_consumers.applying.tables import Removal
from spark_consumers.errors import BadValue
from spark_consumers.second_database.bad_rows import Rejected, put_fitting
from spark_consumers.second_database.dialect import Dialect
from spark_consumers.second_database.names import CONTESTED, RESERVED, STAGED
from topics.records.table_shape import TableShape


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task has staged of one table; small, so that it can travel to the driver.

    `stage`: the staging table, None if there are no rows. `columns`: those of the table that are
    staged. `tombstones` and `contested` count rows, `partial` has the sets of absent columns.
    `rejected`: changes that are not staged, which go into the table of rejected ones. `carried`:
    the changes themselves, where the driver stages them; then only what they say of tables is here.
    """

    database: str
    table: str
    shape: TableShape
    stage: str | None = None
    columns: tuple[str, ...] = ()
    rows: int = 0
    tombstones: int = 0
    contested: int = 0
    partial: tuple[tuple[str, ...], ...] = ()
    removals: tuple[Removal, ...] = ()
    ended_copies: tuple[str, ...] = ()
    renames: tuple[tuple[str, str, str], ...] = ()
    rejected: tuple[Rejected, ...] = ()
    carried: TableChanges | None = None
    told: Told = NOTHING_TOLD


def stage_prefix(follower_digest: str) -> str:
    """Return how the names of a follower's staging tables begin."""
    return f"stage_{follower_digest}_"


def stage(
    connection: Connection,
    dialect: Dialect,
    changes: TableChanges,
    prefix: str,
    *,
    rejects: bool = False,
) -> Staged:
    """Stage the rows of one table. BadValue: a value does not fit; UsageError: a name.

    `rejects`: rows with such values are left out and returned; BadValue if they are too many.
    """
    found = _of_tables(changes)
    if not changes.rows.num_rows:
        return found
    check_names(dialect, changes.shape)
    name = f"{prefix}{secrets.token_hex(8)}"
    shape = changes.shape
    rows = _staged_rows(changes)
    types = dialect.meta_columns(STAGED) | {
        column.name: dialect.type_of(column, is_key=i in shape.primary_key)
        for i, column in enumerate(shape.columns)
    }
    dialect.create_stage(connection, name, types)
    rejected = _put(connection, dialect, name, rows, shape, rejects=rejects)
    if rejected:
        kept = pa.array(i not in rejected for i in range(rows.num_rows))
        rows, changes = rows.filter(kept), replace(changes, rows=changes.rows.filter(kept))
    return replace(
        found,
        rejected=tuple(rejected.values()),
        stage=name,
        columns=tuple(column.name for column in shape.columns),
        rows=rows.num_rows,
        tombstones=_count(rows[DELETED]),
        contested=_count(pc.equal(rows[CONTESTED], 1)),
        partial=_absent_sets(changes.rows),
    )


def carry(dialect: Dialect, changes: TableChanges) -> Staged:
    """Return the changes of one table for the driver, which stages them. UsageError: a name."""
    if changes.rows.num_rows:
        check_names(dialect, changes.shape)
    return replace(_of_tables(changes), carried=changes)


def _of_tables(changes: TableChanges) -> Staged:
    return Staged(
        *(changes.database, changes.table, changes.shape),
        removals=changes.removals,
        ended_copies=changes.ended_copies,
        renames=changes.renames,
        told=changes.told,
    )


def _put(
    connection: Connection,
    dialect: Dialect,
    name: str,
    rows: pa.Table,
    shape: TableShape,
    *,
    rejects: bool,
) -> dict[int, Rejected]:
    """Put rows into a staging table; return those that are left out, by index."""

    def put(part: pa.Table) -> None:
        dialect.stage_rows(connection, name, part, shape)

    try:
        if rejects:
            return put_fitting(connection, put, rows)
        put(rows)
    except BadValue as error:
        raise BadValue(f"{shape.database}.{shape.table}, {error}") from None
    return {}


def check_names(dialect: Dialect, shape: TableShape) -> None:
    """UsageError if the target cannot have a table or a column of a name, or the key."""
    dialect.check_key(shape)
    where = f"{shape.database}.{shape.table}"
    taken = {*RESERVED, *dialect.system_columns}
    for name in (column.name for column in shape.columns):
        if (name.lower() if dialect.folds_case else name) in taken:
            raise UsageError(
                f"{where}: column '{name}' has a name that the target needs for itself "
                f"({', '.join(sorted(taken))}): rename the column, or leave the table out"
            )
    for name in (shape.table, *(column.name for column in shape.columns)):
        length = len(name.encode() if dialect.name_unit == "bytes" else name)
        if length > dialect.name_max:
            raise UsageError(
                f"{where}: the name '{name}' is longer than the {dialect.name_max} "
                f"{dialect.name_unit} that the target allows: leave the table out"
            )


def absent_text(names: tuple[str, ...]) -> str:
    """Return how a set of absent columns is staged."""
    return json.dumps(sorted(names))


def _staged_rows(changes: TableChanges) -> pa.Table:
    """Return STAGED and the table's columns."""
    rows = changes.rows
    absent = (
        pa.array(
            (
                None if names is None else absent_text(tuple(names))
                for names in rows[ABSENT].to_pylist()
            ),
            pa.string(),
        )
        if rows[ABSENT].null_count < rows.num_rows
        else pa.nulls(rows.num_rows, pa.string())
    )
    repeated = _is_repeated(rows)
    contested = pc.or_(rows[COMPARE], repeated).cast(pa.int16())
    rows = rows.set_column(META.get_field_index(ABSENT), ABSENT, absent)
    rows = rows.append_column(CONTESTED, contested)
    return rows.select([*STAGED, *(column.name for column in changes.shape.columns)])


def _is_repeated(rows: pa.Table) -> pa.Array:
    """Tell of each row whether its key has more than one home in the batch."""
    counts = rows.group_by(KEY).aggregate([(KEY, "count")])
    if counts.num_rows == rows.num_rows:
        return pa.array([False] * rows.num_rows)
    repeated = counts.filter(pc.greater(counts[f"{KEY}_count"], 1))[KEY]
    return pc.is_in(rows[KEY], value_set=repeated.combine_chunks())


def _absent_sets(rows: pa.Table) -> tuple[tuple[str, ...], ...]:
    if rows[ABSENT].null_count == rows.num_rows:
        return ()
    found = {tuple(sorted(names)) for names in rows[ABSENT].to_pylist() if names is not None}
    return tuple(sorted(found))


def _count(flags: pa.ChunkedArray) -> int:
    return int(pc.sum(flags.cast(pa.int64())).as_py() or 0)


def first_of_tables(staged: Iterable[Staged]) -> list[Staged]:
    """Return what one task has of each table: the others will know its columns.

    Tasks that meet a new column do not know in which order others have met its types.
    """
    with_columns = (each for each in staged if each.shape.columns)
    return [stages[0] for stages in by_table(with_columns).values()]


def by_table(staged: Iterable[Staged]) -> Mapping[tuple[str, str], list[Staged]]:
    """Return what tasks have staged, by database and table of the source."""
    found: dict[tuple[str, str], list[Staged]] = {}
    for each in staged:
        found.setdefault((each.database, each.table), []).append(each)
    return found
