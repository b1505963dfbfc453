"""A second database: batches of changes staged and applied to a large PostgreSQL table.

`database.dump` fills an empty table, `database.postgres` changes it: batches of 100,000 random
keys, a tenth of them new, a twentieth deletes. One process, without Spark.
"""

import secrets
import time
from typing import Final

import psycopg
import pyarrow as pa

from benchmarks.figures import Figure, Turn, figure
from benchmarks.sinks.order_changes import first_batches, order_changes, planned
from benchmarks.sinks.state_merge import MILLION, Changes, Cost
from benchmarks.stack import Stack
from benchmarks.watch import tree_cpu_s
from shardstream.local.postgres_server import PostgresServer
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions

DUMP: Final = "database.dump"
CHANGES: Final = "database.postgres"
NAMES: Final = (DUMP, CHANGES)
ROWS: Final = 2 * MILLION
QUICK_ROWS: Final = MILLION
BATCHES: Final = 12
QUICK_BATCHES: Final = 6


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
        self._database = SqlDatabase(new_database(server), DatabaseOptions("bench"))
        self._number = -1

    def fill(self) -> Cost:
        """Apply the rows of a table that is empty."""
        self._database.prepare()
        cost = Cost(0, 0.0, 0.0)
        for first in first_batches(self._changes):
            cost += self._apply(*first)
        return cost

    def change(self, batches: int) -> Cost:
        """Change rows of it."""
        cost = Cost(0, 0.0, 0.0)
        for _ in range(batches):
            cost += self._apply(*self._changes.batch(self._number + 1))
        return cost

    def _apply(self, rows: pa.Table, deleted: pa.Array) -> Cost:
        changes = order_changes(rows, deleted)
        self._number += 1
        batch = planned(self._number)
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
