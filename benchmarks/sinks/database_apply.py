"""A second database: batches of changes staged and applied to a large PostgreSQL table.

`database.dump` fills an empty table, `database.postgres` changes it: batches of 100,000 random
keys, a tenth of them new, a twentieth deletes. One process, without Spark.
"""

import secrets
import time
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Figure, Turn, figure
from benchmarks.sinks.state_merge import BATCH_ROWS, MILLION, START_US, Changes, Cost
from benchmarks.stack import Stack
from benchmarks.watch import tree_cpu_s
from event_token.position import ShardPosition, StreamPosition
from shardstream.local.postgres_server import PostgresServer
from spark_consumers.applying.changes import META, TableChanges
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.sink_query.resume import PlannedBatch
from topics.records.table_shape import Column, TableShape, ValueKind

DUMP: Final = "database.dump"
CHANGES: Final = "database.postgres"
NAMES: Final = (DUMP, CHANGES)
ROWS: Final = 2 * MILLION
QUICK_ROWS: Final = MILLION
BATCHES: Final = 12
QUICK_BATCHES: Final = 6
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


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Fill a table and change it, `runs` times."""
    rows, batches = (QUICK_ROWS, QUICK_BATCHES) if quick else (ROWS, BATCHES)
    stack.report(f"{', '.join(names)}: {rows:,} rows and {batches} batches, {runs} run(s)")
    turns = [_Turn(stack.postgres(), rows) for _ in range(runs)]
    costs: dict[str, list[Cost]] = {DUMP: [], CHANGES: []}
    for turn in turns:
        costs[DUMP].append(turn.fill())
        if CHANGES in names:
            costs[CHANGES].append(turn.change(batches))
    figures = []
    for name in names:
        rates = [Turn(cost.per_s) for cost in costs[name]]
        cpu = [Turn(cost.cpu_s_per_100k) for cost in costs[name]]
        figures.append(figure(name, "rows/s" if name == DUMP else "changes/s", rates))
        figures.append(figure(f"{name}_cpu", "CPU s/100k, both sides", cpu))
    return figures


class _Turn:
    """A database of its own."""

    def __init__(self, server: PostgresServer, rows: int) -> None:
        self._server = server
        self._rows = rows
        self._changes = Changes(rows)
        self._database = SqlDatabase(new_database(server), TargetOptions("bench"))
        self._number = -1

    def fill(self) -> Cost:
        """Apply the rows of a table that is empty."""
        self._database.prepare()
        cost = Cost(0, 0.0, 0.0)
        for part in self._changes.base():
            for begin in range(0, part.num_rows, BATCH_ROWS):
                rows = part.slice(begin, BATCH_ROWS)
                cost += self._apply(rows, pa.array(np.zeros(rows.num_rows, np.bool_)))
        return cost

    def change(self, batches: int) -> Cost:
        """Change rows of it."""
        cost = Cost(0, 0.0, 0.0)
        for _ in range(batches):
            cost += self._apply(*self._changes.batch(self._number + 1))
        return cost

    def _apply(self, rows: pa.Table, deleted: pa.Array) -> Cost:
        changes = _table_changes(rows, deleted)
        self._number += 1
        batch = PlannedBatch(
            "bench", self._number, _position(self._number), _position(self._number + 1)
        )
        wall_s, cpu_s = time.monotonic(), time.process_time()
        server_s = tree_cpu_s(self._server.pid)
        self._database.apply_arrow(batch, [changes])
        server_s = tree_cpu_s(self._server.pid) - server_s
        cpu_s = time.process_time() - cpu_s
        return Cost(rows.num_rows, time.monotonic() - wall_s, cpu_s + server_s)


def new_database(server: PostgresServer) -> str:
    """Create a database; return its URL."""
    name = f"bench_{secrets.token_hex(4)}"
    place = f"{server.host}:{server.port}"
    with psycopg.connect(
        f"postgresql://{server.user}:{server.password}@{place}/postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"postgresql://{server.user}:{server.password}@{place}/{name}"


def _position(number: int) -> StreamPosition:
    return StreamPosition(0, START_US + number, {"-": ShardPosition(number, 0, None)})


def _table_changes(rows: pa.Table, deleted: pa.Array) -> TableChanges:
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
    return TableChanges("shop", "orders", SHAPE, rows)
