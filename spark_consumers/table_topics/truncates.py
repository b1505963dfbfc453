"""Statements that empty a table whose rows are in a topic. Pure."""

from collections.abc import Callable, Collection

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.shadow_tables import is_shadow_table, is_swap
from spark_consumers.applying.statements import TableName, effect_of
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
    statements = rows.filter(pc.equal(rows["type"], "DDL")).sort_by(_ORDER)
    columns = ["statement", "database", "shard", "seq"]
    for record in statements.select(columns).to_pylist():
        if is_swap(record["statement"], record["database"]):
            continue
        for what in effect_of(record["statement"], record["database"]).emptied:
            if _is_written(what, tables) and (has_topic(what) or _has_rows(rows, what, record)):
                raise CannotApply(
                    f"{what.database}.{what.table or '*'}, shard {record['shard']}, seq "
                    f"{record['seq']}: TRUNCATE, DROP or CREATE OR REPLACE emptied the table on "
                    f"this shard, and --on-truncate is stop. Consumers of its topic still have the "
                    f"rows. To leave them there, start again with --on-truncate keep; for a topic "
                    f"without them, start with another --prefix from a copy"
                )


def is_among(what: TableName, tables: Collection[str]) -> bool:
    """Tell whether a table, or any of a database, is among tables (`database.table`)."""
    if what.table is None:
        return any(name.startswith(f"{what.database}.") for name in tables)
    return f"{what.database}.{what.table}" in tables


def _is_written(what: TableName, tables: Collection[str]) -> bool:
    if tables:
        return is_among(what, tables)
    return what.table is None or not is_shadow_table(what.table)


def _has_rows(rows: pa.Table, what: TableName, record: dict[str, object]) -> bool:
    """Tell whether the batch has rows of the table from before a statement of its shard."""
    found = pc.and_(pc.equal(rows["type"], "ROW"), pc.equal(rows["database"], what.database))
    if what.table is not None:
        found = pc.and_(found, pc.equal(rows["table"], what.table))
    found = pc.and_(found, pc.equal(rows["shard"], record["shard"]))
    found = pc.and_(found, pc.less(rows["seq"], record["seq"]))
    return bool(pc.any(found, min_count=0).as_py())
