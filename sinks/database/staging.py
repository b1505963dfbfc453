"""Stages the changes of one task: one table of the target per table of the batch.

Rows with values that the target cannot hold are found one by one, for a table of their own.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection

from event_token.errors import UsageError
from sinks.database.dialect import CONTESTED, RESERVED, STAGED, Dialect
from sinks.errors import BadValue
from sinks.rule.columns import NO_REPORT, ColumnReport
from sinks.rule.homes import ABSENT, COMPARE, DELETED, KEY, META, SEQ, SHARD, TIME, TOKEN, Version
from sinks.rule.task_changes import TableChanges
from topics.records.table_shape import TableShape

# Bad values are rare. More of them than this in one batch of a task are a column that does not fit.
REJECTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Rejected:
    """A change with a value that does not fit; `reason` says where and why, without the value."""

    key: str
    shard: str
    seq: int
    time_us: int
    token: str | None
    reason: str


def put_fitting(
    connection: Connection, put: Callable[[pa.Table], None], rows: pa.Table
) -> dict[int, Rejected]:
    """Put all rows that fit; return the others by their index.

    `put` raises BadValue if a row does not fit. BadValue here: there are more than REJECTED_MAX.
    """
    found: dict[int, Rejected] = {}
    waiting = [(0, rows.num_rows)]
    while waiting:
        begin, end = waiting.pop()
        part = rows.slice(begin, end - begin)
        try:
            with connection.begin_nested():
                put(part)
        except BadValue as error:
            if end - begin > 1:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
                continue
            if len(found) == REJECTED_MAX:
                raise BadValue(
                    f"{error}. More than {REJECTED_MAX:,} rows of one batch do not fit, so they "
                    f"are not put aside"
                ) from None
            found[begin] = _rejected(part, str(error))
    return found


def _rejected(row: pa.Table, reason: str) -> Rejected:
    key, shard, seq, time_us, token = (
        row[name][0].as_py() for name in (KEY, SHARD, SEQ, TIME, TOKEN)
    )
    return Rejected(key, shard, seq, time_us, token, reason)


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """What one task has staged of one table; small, so that it can travel to the driver.

    `stage`: the staging table, None if there are no rows. `columns`: those of the table that are
    staged. `tombstones` and `contested` count rows, `partial` has the sets of absent columns.
    `rejected`: changes that are not staged, which go into the table of rejected ones.
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
    removals: tuple[Version, ...] = ()
    ended_copies: tuple[str, ...] = ()
    renames: tuple[tuple[str, str, str], ...] = ()
    rejected: tuple[Rejected, ...] = ()
    report: ColumnReport = NO_REPORT


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
) -> StagedChanges:
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


def _of_tables(changes: TableChanges) -> StagedChanges:
    return StagedChanges(
        *(changes.database, changes.table, changes.shape),
        removals=changes.removals,
        ended_copies=changes.ended_copies,
        renames=changes.renames,
        report=changes.report,
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


def first_of_tables(staged: Iterable[StagedChanges]) -> list[StagedChanges]:
    """Return what one task has of each table: the others will know its columns.

    Tasks that meet a new column do not know in which order others have met its types.
    """
    with_columns = (each for each in staged if each.shape.columns)
    return [stages[0] for stages in by_table(with_columns).values()]


def by_table(staged: Iterable[StagedChanges]) -> Mapping[tuple[str, str], list[StagedChanges]]:
    """Return what tasks have staged, by database and table of the source."""
    found: dict[tuple[str, str], list[StagedChanges]] = {}
    for each in staged:
        found.setdefault((each.database, each.table), []).append(each)
    return found
