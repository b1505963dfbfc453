"""A MySQL server as second database: batches of changes into a table of 300,000 rows.

The batches are those of `state_merge`. Rows are staged by LOAD DATA LOCAL, and beside it by INSERT
statements, as on a server that does not allow the other. CPU time is the server's and this one's.
"""

import time
from typing import Final

import pyarrow as pa

from benchmarks.figures import Figure, Turn, figure
from benchmarks.sinks.order_changes import first_batches, order_changes, planned
from benchmarks.sinks.state_merge import BATCH_ROWS, Changes, Cost
from benchmarks.stack import Stack
from benchmarks.watch import cpu_seconds
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions

NAME: Final = "database.mysql"
PEER: Final = "INSERT"
# A table that stays in the memory of the server, so that the disk does not decide.
ROWS: Final = 300_000
BATCHES: Final = 8
QUICK_BATCHES: Final = 2


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
        self._database = SqlDatabase(url, DatabaseOptions("bench"))
        self._database.prepare()
        self._number = 0
        self._ask("SET GLOBAL local_infile = 1")
        for first in first_batches(changes):
            self._apply(*first)

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
        self._database.apply_arrow(planned(self._number), [order_changes(rows, deleted)])
        self._number += 1

    def _cpu_s(self) -> float:
        pid = self._server.pid
        if pid is None:
            raise Halt("the server ended while it was measured")
        return time.process_time() + cpu_seconds(pid)

    def _ask(self, statement: str) -> None:
        with self._server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
