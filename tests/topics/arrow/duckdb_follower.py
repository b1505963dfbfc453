"""The example of docs/reader-api.md: a DuckDB table that follows a stream, exactly once."""

from collections.abc import Iterable

import duckdb
import pyarrow as pa

from shardstream import EventBatch


def follow(batches: Iterable[EventBatch], connection: duckdb.DuckDBPyConnection) -> None:
    """Append changes of orders, and the position behind them, in one transaction per batch."""
    for batch in batches:
        connection.begin()
        for each in batch.tables:
            if each.table == "orders":
                rows = pa.Table.from_batches([each.rows])  # DuckDB finds it by its name
                connection.execute("INSERT INTO changes SELECT op, after.id, after.price FROM rows")
                del rows
        connection.execute("UPDATE place SET position = ?", [batch.position.to_string()])
        connection.commit()
