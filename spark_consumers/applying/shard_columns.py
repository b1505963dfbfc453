"""Which columns of a sink's table the shards still have, so that others can be dropped. Pure.

A shard tells by the versions of its rows, and by ALTER TABLE ... DROP COLUMN. One that has told
nothing of a column may have it. If a shard adds a column again before all others have dropped it,
the values that it had before must not come back in the rows of that shard.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.batch_statements import BatchStatements, Name
from spark_consumers.applying.changes import KnownTable, SeenVersion, Told
from spark_consumers.applying.evolution import TEXT_SUFFIX, key_names, renamed
from spark_consumers.applying.homes import Version
from spark_consumers.applying.removals import removed
from spark_consumers.applying.statements import TableName
from spark_consumers.applying.tables import Removal
from spark_consumers.decoding.record_decoder import RecordDecoder
from topics.records.table_shape import TableShape

# By column, the shards that lack it, and since which change of theirs.
Lacking = Mapping[str, Mapping[str, Version]]
# A column of a shard, and where it was dropped there.
Dropped = tuple[str, Version]

# What the sink has made of a column: texts of invalid dates, and values of another type.
_DERIVED = re.compile(rf"(?:__v\d+)?(?:{TEXT_SUFFIX})?$")


def told_of(
    routed: pa.Table, decoder: RecordDecoder, statements: BatchStatements
) -> dict[Name, Told]:
    """Return what the rows and statements of a batch tell of the columns of tables."""
    rows = routed.filter(pc.equal(routed["type"], "ROW"))
    both = [(name, how) for name in ("seq", "timestamp_us") for how in ("min", "max")]
    found: dict[Name, list[SeenVersion]] = {}
    for each in rows.group_by(["schema_id", "shard"]).aggregate(both).to_pylist():
        shape = decoder.shape(each["schema_id"])
        first, last = (
            Version(each["shard"], each[f"seq_{how}"], each[f"timestamp_us_{how}"], None, None)
            for how in ("min", "max")
        )
        found.setdefault((shape.database, shape.table), []).append(SeenVersion(shape, first, last))
    named = {(drop.table.database, str(drop.table.table)) for drop, _ in statements.drops}
    return {
        name: Told(tuple(found.get(name, ())), statements.drops_of(name))
        for name in sorted(found.keys() | named)
    }


def without_dropped(rows: pa.Table, told: Told, known: KnownTable) -> pa.Table:
    """Return rows (META and columns) without the values that their shards' DROP COLUMN removed.

    `known`: the table after the batch.
    """
    for column, at in _named_as(known, told.dropped):
        rows = cleared(rows, column, at)
    return rows


def cleared(rows: pa.Table, column: str, at: Version) -> pa.Table:
    """Return rows with NULL in a column where they are older than its DROP on a shard."""
    if column not in rows.column_names or not rows.num_rows:
        return rows
    index = rows.schema.get_field_index(column)
    field = rows.schema.field(index)
    gone = is_before(rows, at)
    values = pc.if_else(gone, pa.scalar(None, field.type), rows[column].combine_chunks())
    return rows.set_column(index, field, values)


def is_before(rows: pa.Table, at: Version) -> pa.Array:
    """Tell of each row whether a statement on a shard is newer, and the row at home there."""
    return removed([Removal(TableName("", None), at)], rows)


def followed(
    lacking: Lacking, told: Iterable[Told], known: KnownTable, live: Collection[str]
) -> tuple[dict[str, dict[str, Version]], list[Dropped]]:
    """Return the columns that shards lack after a batch, and those that a shard has added again.

    `known`: the table after the batch. `live`: the shards that the stream goes on with.
    """
    columns = _droppable(known.shape)
    now: dict[str, dict[str, Version]] = {column: {} for column in columns}
    for column, shards in lacking.items():
        name = column if column in now else known.renames.get(column, column)
        now.setdefault(name, {}).update(shards)
    again: list[Dropped] = []
    for at, has, dropped in sorted(_events(told, known), key=lambda event: event[0].seq):
        for column in columns:
            if column in dropped:
                now[column][at.shard] = at
            elif has is None:
                continue
            elif not _is_in(column, has):
                now[column].setdefault(at.shard, at)
            elif since := now[column].pop(at.shard, None):
                again.append((column, since))
    left = {
        column: {shard: since for shard, since in now[column].items() if shard in live}
        for column in columns
    }
    return {column: shards for column, shards in left.items() if shards}, again


def to_drop(lacking: Lacking, shape: TableShape, live: Collection[str]) -> list[str]:
    """Return the columns of a sink's table that no live shard has."""
    every = set(live)
    return [
        column
        for column in _droppable(shape)
        if every and column in lacking and every <= lacking[column].keys()
    ]


def without(known: KnownTable, columns: Collection[str]) -> KnownTable:
    """Return a table without some columns, and without the names that they had before."""
    shape = known.shape
    key = key_names(shape)
    left = tuple(column for column in shape.columns if column.name not in columns)
    names = [column.name for column in left]
    return KnownTable(
        replace(shape, columns=left, primary_key=tuple(map(names.index, key))),
        {old: new for old, new in known.renames.items() if new not in columns},
    )


def as_json(lacking: Lacking) -> dict[str, dict[str, tuple[int, int]]]:
    """Return what `of_json` reads."""
    return {
        column: {shard: (at.seq, at.timestamp_us) for shard, at in shards.items()}
        for column, shards in lacking.items()
    }


def of_json(found: Mapping[str, Mapping[str, tuple[int, int]]]) -> Lacking:
    """Return the columns that shards lack, as stored."""
    return {
        column: {shard: Version(shard, *at, None, None) for shard, at in shards.items()}
        for column, shards in found.items()
    }


def _events(
    told: Iterable[Told], known: KnownTable
) -> Iterator[tuple[Version, set[str] | None, set[str]]]:
    """Yield (place, columns that the shard has there, columns that it drops there)."""
    for each in told:
        for version in each.seen:
            has = {column.name.lower() for column in renamed(version.shape, known.renames).columns}
            yield from ((at, has, set()) for at in dict.fromkeys((version.first, version.last)))
        for column, at in _named_as(known, each.dropped):
            yield at, None, {column}


def _named_as(known: KnownTable, dropped: Iterable[Dropped]) -> Iterator[Dropped]:
    """Yield dropped columns by the names that they have in the sink's table."""
    now = {column.name.lower(): column.name for column in known.shape.columns}
    later = {old.lower(): new for old, new in known.renames.items()}
    key = set(key_names(known.shape))
    for column, at in dropped:
        name = now.get(column.lower()) or now.get(later.get(column.lower(), "").lower())
        if name is not None and name not in key:
            yield name, at


def _droppable(shape: TableShape) -> list[str]:
    key = set(key_names(shape))
    return [column.name for column in shape.columns if column.name not in key]


def _is_in(column: str, names: Collection[str]) -> bool:
    """Tell whether a version has a column, or the one of which the sink has made it."""
    name = column.lower()
    return name in names or _DERIVED.sub("", name) in names
