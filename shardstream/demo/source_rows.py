"""The rows of the demo's databases, which all consumers must have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstream.demo.shop import DATABASE, Connect

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """All rows, as PyMySQL reads them: by (shard, table) and primary key.

    `types` has the data type of each column by table, `keys` the columns of the primary keys.
    """

    rows: dict[tuple[str, str], dict[Key, Row]] = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)
    keys: dict[str, list[str]] = field(default_factory=dict)


def read_sources(shards: Mapping[str, Connect]) -> SourceRows:
    """Read the tables of all shards."""
    found = SourceRows()
    for shard, connect in shards.items():
        _read_shard(shard, connect, found)
    return found


def _read_shard(shard: str, connect: Connect, found: SourceRows) -> None:
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, data_type, column_key FROM information_schema.columns "
            "WHERE table_schema = %s ORDER BY table_name, ordinal_position",
            (DATABASE,),
        )
        types: dict[str, dict[str, str]] = {}
        keys: dict[str, list[str]] = {}
        for table, column, data_type, column_key in cursor.fetchall():
            types.setdefault(table, {})[column] = data_type
            if column_key == "PRI":
                keys.setdefault(table, []).append(column)
        found.types.update(types)
        found.keys.update(keys)
        for table, columns in types.items():
            cursor.execute(f"SELECT * FROM {DATABASE}.{table}")  # noqa: S608 - our own table names
            rows = found.rows.setdefault((shard, table), {})
            for values in cursor.fetchall():
                row = dict(zip(columns, values, strict=True))
                rows[tuple(row[name] for name in keys[table])] = row
