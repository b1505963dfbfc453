"""The columns of a target's tables, and what they tell of the source's columns. Pure.

A table has the source's columns by name, then those that keep the order of changes. The type that a
column has in the database stands in its field's metadata, for the Arrow type alone does not tell a
YEAR from an INT.
"""

import json
from collections.abc import Sequence

import pyarrow as pa
from deltalake import Schema

from spark_consumers.applying.changes import DELETED, HOME, KEY, SEQ, SHARD, TIME, KnownTable
from spark_consumers.applying.evolution import (
    effective_renames,
    known_names,
    new_names,
    renamed,
    united,
)
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.output_columns import arrow_type
from topics.records.table_shape import Column, TableShape, ValueKind

COLUMN = b"shardstream.column"
_KEPT = (
    pa.field(KEY, pa.string()),
    pa.field(HOME, pa.binary()),
    pa.field(SHARD, pa.string()),
    pa.field(SEQ, pa.int64()),
    pa.field(TIME, pa.int64()),
)


def visible_schema(known: KnownTable) -> pa.Schema:
    """Return the columns of a table of visible rows."""
    earlier: dict[str, list[str]] = {}
    for old, new in known.renames.items():
        earlier.setdefault(new, []).append(old)
    keys = {index: place for place, index in enumerate(known.shape.primary_key)}
    fields = [
        pa.field(
            column.name,
            arrow_type(column),
            metadata={COLUMN: _text(column, keys.get(index), earlier.get(column.name, []))},
        )
        for index, column in enumerate(known.shape.columns)
    ]
    return pa.schema([*fields, *_KEPT])


def hidden_schema(visible: pa.Schema) -> pa.Schema:
    """Return the columns of the table of the other versions."""
    return visible.append(pa.field(DELETED, pa.bool_()))


def known_table(database: str, table: str, schema: pa.Schema) -> KnownTable:
    """Return what a table of visible rows tells of the source's table."""
    columns: list[Column] = []
    keys: dict[int, int] = {}
    renames: dict[str, str] = {}
    for field in schema:
        text = (field.metadata or {}).get(COLUMN)
        if text is None:
            continue
        found = json.loads(text)
        if found["key"] is not None:
            keys[found["key"]] = len(columns)
        renames |= dict.fromkeys(found["earlier"], field.name)
        columns.append(
            Column(
                field.name,
                ValueKind(found["kind"]),
                found["sql_type"],
                found["precision"],
                found["scale"],
                tuple(found["labels"]),
            )
        )
    primary_key = tuple(keys[place] for place in sorted(keys))
    return KnownTable(TableShape(database, table, tuple(columns), primary_key), renames)


def evolved(
    known: KnownTable,
    shapes: Sequence[TableShape],
    renames: Sequence[tuple[str, str, str]],
    on_type_change: OnTypeChange,
) -> tuple[KnownTable, dict[str, str]]:
    """Return a table after a batch, and the names that columns lose (old: new).

    ShapeConflict: see `applying.evolution`.
    """
    first = known.shape if known.shape.columns else shapes[0]
    lost = new_names(effective_renames(first, renames))
    shape = renamed(first, lost)
    for other in shapes:
        shape = united(shape, other, on_type_change)
    return KnownTable(shape, known_names(known.renames, renames)), lost


def is_readable_as(stored: pa.Schema, wanted: pa.Schema) -> bool:
    """Tell whether the files of a table have the names and types of other columns."""
    fields = {field.name.lower(): field for field in Schema.from_arrow(stored).fields}
    for other in Schema.from_arrow(wanted).fields:
        field = fields.get(other.name.lower(), other)
        if (field.name, str(field.type)) != (other.name, str(other.type)):
            return False
    return True


def _text(column: Column, key: int | None, earlier: Sequence[str]) -> str:
    found = {
        "kind": column.kind.value,
        "sql_type": column.sql_type,
        "precision": column.precision,
        "scale": column.scale,
        "labels": column.labels,
        "key": key,
        "earlier": sorted(earlier),
    }
    return json.dumps(found)
