"""The batches of `state_merge` as a second database takes them."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.sinks.state_merge import BATCH_ROWS, START_US, Changes
from event_token.position import ShardPosition, StreamPosition
from sinks.resume import PlannedBatch
from sinks.rule.homes import META
from sinks.rule.task_changes import TableChanges
from topics.records.table_shape import Column, TableShape, ValueKind

# As long as a token of one GTID.
TOKEN: Final = "UQ" + "x" * 86
SHAPE: Final = TableShape(
    "shop",
    "orders",
    (
        Column("id", ValueKind.LONG, "bigint"),
        Column("customer_id", ValueKind.LONG, "bigint"),
        Column("amount", ValueKind.DOUBLE, "double"),
        Column("note", ValueKind.STRING, "varchar(60)"),
        Column("updated_at", ValueKind.TIMESTAMP, "timestamp(6)"),
    ),
    (0,),
)


def first_batches(changes: Changes) -> Iterator[tuple[pa.Table, pa.Array]]:
    """Yield the rows of a new table, and of each that it is not deleted."""
    for part in changes.base():
        for begin in range(0, part.num_rows, BATCH_ROWS):
            rows = part.slice(begin, BATCH_ROWS)
            yield rows, pa.array(np.zeros(rows.num_rows, np.bool_))


def planned(number: int) -> PlannedBatch:
    """Return the plan of a batch, counted from 0."""
    return PlannedBatch("bench", number, _position(number), _position(number + 1))


def _position(number: int) -> StreamPosition:
    return StreamPosition(0, START_US + number, {"-": ShardPosition(number, 0, None)})


def order_changes(rows: pa.Table, deleted: pa.Array) -> TableChanges:
    """Return rows of `Changes` as changes; `deleted` tells of each whether it is a DELETE."""
    count = rows.num_rows
    more = {
        "_deleted": deleted,
        "_token": pa.array([TOKEN]).take(pa.array(np.zeros(count, np.int64))),
        "_compare": pa.array(np.zeros(count, np.bool_)),
        "_absent": pa.nulls(count, META.field("_absent").type),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    rows = rows.select([*META.names, *(column.name for column in SHAPE.columns)])
    # Of a tombstone only the key is there.
    for column in SHAPE.columns[1:]:
        i = rows.schema.get_field_index(column.name)
        rows = rows.set_column(i, column.name, pc.if_else(deleted, None, rows[i]))
    return TableChanges(SHAPE.database, SHAPE.table, SHAPE, rows)
