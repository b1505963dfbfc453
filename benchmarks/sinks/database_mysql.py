"""A MySQL server as second database: batches of changes into a table of 300,000 rows.

The batches are those of `state_merge`. Rows are staged by LOAD DATA LOCAL, and beside it by INSERT
statements, as on a server that does not allow the other. CPU time is the server's and this one's.
"""

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.figures import Figure, Turn, figure
from benchmarks.sinks.state_merge import BATCH_ROWS, Changes, Cost
from benchmarks.stack import Stack
from benchmarks.watch import cpu_seconds
from event_token.errors import Halt
from event_token.position import ShardPosition, StreamPosition
from shardstream.local.database_server import MysqlServer
from spark_consumers.applying.changes import ABSENT, COMPARE, DELETED, META, TOKEN, TableChanges
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.sink_query.resume import PlannedBatch
from topics.records.table_shape import Column, TableShape, ValueKind

NAME: Final = "database.mysql"
PEER: Final = "INSERT"
# A table that stays in the memory of the server, so that the disk does not decide.
ROWS: Final = 300_000
BATCHES: Final = 8
QUICK_BATCHES: Final = 2
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
    """Measure both ways of staging, one after the other in each turn."""
    [name] = names
    server = stack.mysql(0)
    stack.report(f"{name}: {ROWS:,} rows into a table")
    target = _Target(server, Changes(ROWS))
    count = QUICK_BATCHES if quick else BATCHES
    turns = [(target.cost(count, load=True), target.cost(count, load=False)) for _ in range(runs)]
    rates = [Turn(ours.per_s, theirs.per_s) for ours, theirs in turns]
    cpu = [Turn(ours.cpu_s_per_100k, theirs.cpu_s_per_100k) for ours, theirs in turns]
    return [
        figure(name, "changes/s", rates, peer=PEER),
        figure(f"{name}_cpu", "CPU s/100k", cpu, peer=PEER),
    ]


class _Target:
    def __init__(self, server: MysqlServer, changes: Changes) -> None:
        self._server = server
        self._changes = changes
        self._ask("CREATE DATABASE reports")
        url = f"mysql://{server.root_user}@{server.host}:{server.port}/reports"
        self._database = SqlDatabase(url, TargetOptions("bench"))
        self._database.prepare()
        self._number = 0
        self._ask("SET GLOBAL local_infile = 1")
        for rows in _parts(changes):
            self._apply(rows, pa.nulls(rows.num_rows, pa.bool_()).fill_null(fill_value=False))

    def cost(self, count: int, *, load: bool) -> Cost:
        """Apply some batches."""
        self._ask(f"SET GLOBAL local_infile = {int(load)}")
        wall_s = cpu_s = 0.0
        for _ in range(count):
            rows, deleted = self._changes.batch(self._number)
            begun = time.monotonic(), self._cpu_s()
            self._apply(rows, deleted)
            wall_s += time.monotonic() - begun[0]
            cpu_s += self._cpu_s() - begun[1]
        return Cost(count * BATCH_ROWS, wall_s, cpu_s)

    def _apply(self, rows: pa.Table, deleted: pa.Array) -> None:
        changes = TableChanges(SHAPE.database, SHAPE.table, SHAPE, _staged(rows, deleted))
        ends = [
            StreamPosition(0, number, {"-": ShardPosition(number, 0, None)})
            for number in (self._number, self._number + 1)
        ]
        self._database.apply_arrow(PlannedBatch("bench", self._number, *ends), [changes])
        self._number += 1

    def _cpu_s(self) -> float:
        pid = self._server.pid
        if pid is None:
            raise Halt("the server ended while it was measured")
        return time.process_time() + cpu_seconds(pid)

    def _ask(self, statement: str) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)


def _parts(changes: Changes) -> Iterator[pa.Table]:
    for rows in changes.base():
        for begin in range(0, rows.num_rows, BATCH_ROWS):
            yield rows.slice(begin, BATCH_ROWS)


def _staged(rows: pa.Table, deleted: pa.Array) -> pa.Table:
    """Return the rows as changes; of a deleted one only the key is left."""
    count = rows.num_rows
    for column in SHAPE.columns[1:]:
        values = pc.if_else(deleted, None, rows[column.name])
        rows = rows.set_column(rows.schema.get_field_index(column.name), column.name, values)
    more = {
        DELETED: deleted,
        TOKEN: pa.array(["x" * 90] * count),
        COMPARE: pa.array([False] * count),
        ABSENT: pa.nulls(count, META.field(ABSENT).type),
    }
    for name, values in more.items():
        rows = rows.append_column(name, values)
    return rows.select([*META.names, *(column.name for column in SHAPE.columns)])
