"""The rows of an applier's backlog by other means: MySQL's client, MySQL's own applier."""

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pymysql.converters import escape_item
from pymysql.cursors import Cursor

from benchmarks.binlog_fill import DATABASE, Waiting, create_table
from benchmarks.watch import cpu_seconds
from benchmarks.workloads import Workload
from event_token.errors import Halt, UsageError
from shardstream.local.database_server import MysqlServer
from shardstream.local.processes import with_parent_guard

CLIENT: Final = "mysql client, batches"
REPLICA: Final = "MySQL's applier, 4 workers"
# As the applier's own, so that only the way of the rows differs.
STATEMENT_ROWS: Final = 1_000
COMMIT_ROWS: Final = 10_000
WORKERS: Final = 4
TAKES_S_MAX: Final = 600.0
POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Applied:
    """How fast rows were applied, and the CPU time a row: of who applies, and of the target."""

    rows_per_s: float
    own_us: float
    server_us: float

    @property
    def cpu_us(self) -> float:
        """Both together."""
        return self.own_us + self.server_us


def applied(rows: int, took_s: float, own_s: float, server_s: float) -> Applied:
    """Relate the times to the rows."""
    return Applied(rows / took_s, own_s * 1e6 / rows, server_s * 1e6 / rows)


def pid_of(server: MysqlServer) -> int:
    """Return the server's process. Halt if it does not run."""
    if server.pid is None:
        raise Halt(f"{server.name} does not run")
    return server.pid


def write_statements(server: MysqlServer, workload: Workload, path: Path) -> None:
    """Write the rows of the table as transactions of REPLACE statements to a file."""
    with (
        server.connect(database=DATABASE) as connection,
        connection.cursor() as cursor,
        path.open("w") as file,
    ):
        cursor.execute(f"SELECT * FROM {workload.table} ORDER BY id")
        for commit in range(0, workload.rows, COMMIT_ROWS):
            file.write("BEGIN;\n")
            for _ in range(commit, min(commit + COMMIT_ROWS, workload.rows), STATEMENT_ROWS):
                rows = cursor.fetchmany(STATEMENT_ROWS)
                values = ", ".join(
                    f"({', '.join(escape_item(value, 'utf8mb4') for value in row)})" for row in rows
                )
                file.write(f"REPLACE INTO {workload.table} VALUES {values};\n")
            file.write("COMMIT;\n")


def by_client(server: MysqlServer, workload: Workload, statements: Path) -> Applied:
    """Send the statements with MySQL's client to the empty table. UsageError without the client."""
    dump = server.binaries().binlog_dump
    place = next((i for i, word in enumerate(dump) if word.endswith("mysqlbinlog")), None)
    if place is None:
        raise UsageError("no mysqlbinlog program beside this MySQL server, hence no mysql either")
    client = (*dump[:place], str(Path(dump[place]).with_name("mysql")), *dump[place + 1 :])
    command = [
        *client,
        f"--host={server.host}",
        f"--port={server.port}",
        f"--user={server.root_user}",
        "--protocol=TCP",
        "--ssl-mode=DISABLED",
        f"--database={DATABASE}",
    ]
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {DATABASE}.{workload.table}")
    before_s, began_s = cpu_seconds(pid_of(server)), time.monotonic()
    with statements.open("rb") as file:
        process = subprocess.Popen(with_parent_guard(command), stdin=file)
        _, status, usage = os.wait4(process.pid, 0)
    took_s = time.monotonic() - began_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise Halt(f"{client[0]} ended with status {process.returncode}")
    server_s = cpu_seconds(pid_of(server)) - before_s
    return applied(workload.rows, took_s, usage.ru_utime + usage.ru_stime, server_s)


def by_replica(
    source: MysqlServer, replica: MysqlServer, workload: Workload, waiting: Waiting
) -> Applied:
    """Let a replica that has the binlog already apply it, with WORKERS workers.

    The work of its workers is that of its server: `own_us` is 0.
    """
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute("STOP REPLICA")
        cursor.execute("RESET REPLICA ALL")
        cursor.execute("RESET BINARY LOGS AND GTIDS")
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        cursor.execute("SET sql_log_bin = 1")
    create_table(replica, workload)
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute("RESET BINARY LOGS AND GTIDS")
        cursor.execute("SET GLOBAL gtid_purged = %s", (waiting.start,))
        cursor.execute(f"SET GLOBAL replica_parallel_workers = {WORKERS}")
        cursor.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s, "
            "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
            (source.host, source.port, source.root_user),
        )
        cursor.execute("START REPLICA IO_THREAD")
        _wait(
            cursor,
            "SELECT GTID_SUBSET(GTID_SUBTRACT(%s, %s), received_transaction_set) "
            "FROM performance_schema.replication_connection_status",
            (waiting.end, waiting.start),
        )
        before_s = cpu_seconds(pid_of(replica))
        began_s = time.monotonic()
        cursor.execute("START REPLICA SQL_THREAD")
        _wait(cursor, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (waiting.end,))
        took_s = time.monotonic() - began_s
        server_s = cpu_seconds(pid_of(replica)) - before_s
        cursor.execute("STOP REPLICA")
    return applied(workload.rows, took_s, 0.0, server_s)


def _wait(cursor: Cursor, question: str, arguments: tuple[str, ...]) -> None:
    deadline_s = time.monotonic() + TAKES_S_MAX
    while True:
        cursor.execute(question, arguments)
        if cursor.fetchall() == ((1,),):
            return
        if time.monotonic() > deadline_s:
            raise Halt(f"not within {TAKES_S_MAX:g} s: {question}")
        time.sleep(POLL_S)
