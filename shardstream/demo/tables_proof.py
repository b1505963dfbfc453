"""Compares the consumers' tables with the databases, row by row and value by value."""

import json
import struct
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from shardstream.demo.shop import DATABASE
from shardstream.demo.source_rows import Key, Row, SourceRows
from spark_consumers.current_state.query.as_of import table_as_of

# Later than any frontier: the newest one.
NEWEST_US = 2**62

# The rows of a table.
ReadTable = Callable[[str], Iterable[Row]]


def state_reader(target: Path) -> ReadTable:
    """Read the tables of `shardstream state`, all at one frontier."""
    return lambda table: table_as_of(str(target), f"{DATABASE}.{table}", NEWEST_US).rows.to_pylist()


def database_reader(url: str, password: str) -> ReadTable:
    """Read the tables of `shardstream database` in PostgreSQL."""

    def read(table: str) -> list[Row]:
        with psycopg.connect(url, password=password, row_factory=dict_row) as connection:
            query = SQL("SELECT * FROM {}").format(Identifier(DATABASE, table))
            return connection.execute(query).fetchall()

    return read


def rows_that_differ(sources: SourceRows, read: ReadTable) -> int:
    """Count rows that lack, are too many, or have other values than in the databases."""
    different = 0
    for table, types in sources.types.items():
        expected = {
            key: plain_row(row, types)
            for (_, name), rows in sources.rows.items()
            if name == table
            for key, row in rows.items()
        }
        found: dict[Key, Row] = {}
        for row in read(table):
            key = tuple(row[name] for name in sources.keys[table])
            different += key in found
            found[key] = plain_row(row, types)
        different += sum(expected.get(k) != found.get(k) for k in expected.keys() | found.keys())
    return different


def plain_row(row: Row, types: dict[str, str]) -> Row:
    """The table's own columns, each value in the one form that all drivers' values have."""
    return {name: _plain(row[name], data_type) for name, data_type in types.items()}


def _plain(value: Any, data_type: str) -> Any:
    match value, data_type:
        case None, _:
            return None
        case str(), "json":
            return json.loads(value)
        case str(), "set":
            return set(value.split(",")) if value else set()
        case list(), "set":
            return set(value)
        case float(), "float":
            # Drivers read four bytes as the shortest decimal, or as the nearest eight bytes.
            return struct.unpack("f", struct.pack("f", value))[0]
        case datetime(), "timestamp":
            return value if value.tzinfo else value.replace(tzinfo=UTC)
        case _:
            return value
