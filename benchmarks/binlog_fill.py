"""Fills binlogs fast: stored procedures that commit in a loop, over several connections."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.workloads import Workload
from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer

DATABASE = "bench"
# Commits are flushed in groups: more writers, larger groups.
WRITERS = 8

# A loop over transactions, of one statement each.
_PROCEDURE = """
CREATE PROCEDURE {name}(begin_at BIGINT, transactions BIGINT)
BEGIN
  DECLARE i BIGINT DEFAULT 0;
  WHILE i < transactions DO
    {statement};
    SET i = i + 1;
  END WHILE;
END
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A filled stretch of a server's binlog; nothing else follows `start`."""

    table: str
    transactions: int
    rows: int
    # The executed GTID set before the first transaction of the stretch.
    start: str
    # The executed GTID set after the last.
    end: str
    first_file: str


def executed_set(server: MysqlServer) -> str:
    """Return the server's executed GTID set, on one line."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        row = cursor.fetchone()
    if row is None:
        message = f"{server.name} reports no executed GTID set"
        raise Halt(message)
    return str(row[0]).replace("\n", "")


def create_table(server: MysqlServer, workload: Workload) -> None:
    """Create the table, with rows if they are to be changed, and the filling procedure.

    The stretch then contains no DDL and none of these rows.
    """
    table, rows = workload.table, workload.rows_per_transaction
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(f"CREATE TABLE {table} ({workload.columns})")
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (n INT PRIMARY KEY)")
        numbers = ", ".join(f"({n})" for n in range(rows))
        cursor.execute("DELETE FROM numbers")
        cursor.execute(f"INSERT INTO numbers VALUES {numbers}")
        first = f"(begin_at + i * {rows})"
        for kind, statement in (("fill", workload.statement()), ("before", workload.insert())):
            cursor.execute(
                _PROCEDURE.format(
                    name=f"{kind}_{table}", statement=statement.replace("{first}", first)
                )
            )
    if workload.change:
        _call(server, f"before_{table}", workload, logged=False)


def fill(server: MysqlServer, workload: Workload) -> Waiting:
    """Commit the transactions to a new binlog file and return the stretch.

    Call `create_table` right before. Raises Halt if the binlog has another number of transactions.
    """
    first_file = _rotate(server)
    start = executed_set(server)
    _call(server, f"fill_{workload.table}", workload, logged=True)
    end = executed_set(server)
    _check_count(server, start, end, workload.transactions)
    return Waiting(workload.table, workload.transactions, workload.rows, start, end, first_file)


def _call(server: MysqlServer, procedure: str, workload: Workload, *, logged: bool) -> None:
    """Share the transactions among the writers."""
    share, rest = divmod(workload.transactions, WRITERS)
    counts = [share + (1 if writer < rest else 0) for writer in range(WRITERS)]
    firsts = [workload.rows_per_transaction * sum(counts[:n]) + 1 for n in range(WRITERS)]

    def write(writer: int) -> None:
        with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET sql_log_bin = {int(logged)}")
            cursor.execute(f"CALL {procedure}({firsts[writer]}, {counts[writer]})")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))


def _rotate(server: MysqlServer) -> str:
    """Start a new binlog file, so that no reader has to skip anything; return its name."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOG STATUS")
        row = cursor.fetchone()
    if row is None:
        message = f"{server.name} has no binlog"
        raise Halt(message)
    return str(row[0])


def _check_count(server: MysqlServer, start: str, end: str, transactions: int) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GTID_SUBTRACT(%s, %s)", (end, start))
        row = cursor.fetchone()
    added = "" if row is None else str(row[0])
    # One server, nothing else writes: `uuid:first-last`.
    numbers = added.rpartition(":")[2].split("-")
    count = int(numbers[-1]) - int(numbers[0]) + 1
    if count != transactions:
        message = (
            f"{server.name}: {transactions} transactions were wanted, the binlog holds {added}"
        )
        raise Halt(message)
