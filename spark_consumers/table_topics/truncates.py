"""Statements that change rows of a topic's table without logging them. Pure."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.homes import Version
from spark_consumers.applying.shadow_tables import is_shadow_table, swap_of
from spark_consumers.applying.statements import TableName, effect_of
from spark_consumers.applying.unlogged import (
    Unlogged,
    concerns,
    has_rows_before,
    to_be_copied,
    unlogged_by,
)
from spark_consumers.errors import CannotApply

_ORDER = [("timestamp_us", "ascending"), ("shard", "ascending"), ("seq", "ascending")]


def check_truncates(
    rows: pa.Table, tables: Collection[str], has_topic: Callable[[TableName], bool]
) -> None:
    """CannotApply at the first statement that empties a table with messages.

    `rows`: those of the source that a task has not written yet. `tables` (`database.table`): those
    that are written, empty for all. `has_topic` tells whether a table has a topic, and of a
    database whether any of its tables has one.
    """
    for record in _statements(rows):
        for what, at in _emptied(record):
            if _is_written(what, tables) and (has_topic(what) or has_rows_before(rows, what, at)):
                raise CannotApply(
                    f"{what.database}.{what.table or '*'}, shard {record['shard']}, seq "
                    f"{record['seq']}: TRUNCATE, DROP or CREATE OR REPLACE emptied the table on "
                    f"this shard, and --on-truncate is stop. Consumers of its topic still have the "
                    f"rows. To leave them there, start again with --on-truncate keep; for a topic "
                    f"without them, start with another --prefix from a copy"
                )


def unlogged_of(
    rows: pa.Table, tables: Collection[str], has_topic: Callable[[TableName], bool]
) -> list[Unlogged]:
    """Return the statements behind which tables with messages must be copied again.

    The arguments are those of `check_truncates`.
    """
    statements = _statements(rows)
    emptied = [each for record in statements for each in _emptied(record)]
    found = to_be_copied((e for record in statements for e in unlogged_by(record)), emptied)
    return [
        each for each in found if _is_written(each.what, tables) and concerns(each, has_topic, rows)
    ]


def _statements(rows: pa.Table) -> list[dict[str, Any]]:
    columns = ["statement", "database", "shard", "seq", "timestamp_us", "gtid"]
    statements = rows.filter(pc.equal(rows["type"], "DDL")).sort_by(_ORDER).select(columns)
    return list(statements.to_pylist())


def _emptied(record: Mapping[str, Any]) -> list[tuple[TableName, Version]]:
    statement, database = record["statement"], record["database"]
    swap = swap_of(statement, database)
    emptied = effect_of(statement, database).emptied if swap is None else swap.emptied
    at = Version(record["shard"], record["seq"], record["timestamp_us"], None, None)
    return [(what, at) for what in emptied]


def is_among(what: TableName, tables: Collection[str]) -> bool:
    """Tell whether a table, or any of a database, is among tables (`database.table`)."""
    if what.table is None:
        return any(name.startswith(f"{what.database}.") for name in tables)
    return f"{what.database}.{what.table}" in tables


def _is_written(what: TableName, tables: Collection[str]) -> bool:
    if tables:
        return is_among(what, tables)
    return what.table is None or not is_shadow_table(what.table)
