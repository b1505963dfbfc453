"""Turns the topology's vindexes into the decoder's sharding columns."""

from collections.abc import Iterable

from event_token.errors import UsageError
from producers.decoder.tables.sharding import ShardingColumn
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named


def sharding_columns(vindexes: Iterable[TableVindex]) -> dict[tuple[str, str], ShardingColumn]:
    """Return the sharding column of each (database, table).

    UsageError on an unknown vindex, on several columns (all vindexes here take one), and on a
    table that is declared twice.
    """
    found: dict[tuple[str, str], ShardingColumn] = {}
    for entry in vindexes:
        table = f"{entry.database}.{entry.table}"
        if len(entry.columns) != 1:
            raise UsageError(
                f"table {table}: vindex {entry.vindex} takes one column, and is declared over "
                f"{', '.join(entry.columns) or 'none'}"
            )
        if (entry.database, entry.table) in found:
            raise UsageError(f"table {table}: two vindexes are declared, it can have one")
        vindex = vindex_named(entry.vindex)
        found[entry.database, entry.table] = ShardingColumn(entry.columns[0], vindex)
    return found
