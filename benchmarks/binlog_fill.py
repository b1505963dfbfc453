"""Filling binlogs fast: stored procedures that commit as they go, over several connections."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from event_token.errors import Halt
from shardstream.local.database_server import MysqlServer

DATABASE = "bench"
# A commit waits for a flush together with the others of its group: more writers, larger groups.
WRITERS = 8

_TABLE = """
CREATE TABLE {table} (
  id BIGINT NOT NULL PRIMARY KEY,
  customer INT NOT NULL,
  title VARCHAR(64) CHARACTER SET utf8mb4,
  amount DECIMAL(12,2),
  state ENUM('new', 'paid', 'sent', 'done'),
  note TEXT CHARACTER SET utf8mb4,
  created DATETIME(3),
  changed TIMESTAMP(6) NULL
)
"""
_COLUMNS = (
    "CONCAT('order ', {id}, ' of the day'), ({id} % 999983) / 100, 1 + {id} % 4, "
    "CONCAT('a note of some length that goes with order number ', {id}), "
    "'2026-01-31 12:00:00.123' + INTERVAL {id} SECOND, NOW(6)"
)
# Transactions of one row.
_SINGLE = """
CREATE PROCEDURE fill_{table}(first BIGINT, transactions BIGINT)
BEGIN
  DECLARE i BIGINT DEFAULT first;
  WHILE i < first + transactions DO
    INSERT INTO {table} VALUES (i, i % 10007, {columns});
    SET i = i + 1;
  END WHILE;
END
"""
# Transactions of `rows` rows, a statement each: the numbers come from a table of as many.
_MANY = """
CREATE PROCEDURE fill_{table}(first BIGINT, transactions BIGINT)
BEGIN
  DECLARE i BIGINT DEFAULT 0;
  WHILE i < transactions DO
    INSERT INTO {table} SELECT first + i * {rows} + n, n, {columns} FROM numbers ORDER BY n;
    SET i = i + 1;
  END WHILE;
END
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A filled stretch of a server's binlog: nothing else is behind `start`."""

    table: str
    transactions: int
    rows: int
    # The executed GTID set before the first transaction of the stretch.
    start: str
    # The executed GTID set after the last.
    end: str
    first_file: str


def executed_set(server: MysqlServer) -> str:
    """The server's executed GTID set, on one line."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed")
        row = cursor.fetchone()
    if row is None:
        message = f"{server.name} tells no executed GTID set"
        raise Halt(message)
    return str(row[0]).replace("\n", "")


def create_table(server: MysqlServer, table: str, *, rows_per_transaction: int) -> None:
    """Create an empty table and the procedure that fills it: the stretch then holds no DDL."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(_TABLE.format(table=table))
        if rows_per_transaction == 1:
            cursor.execute(_SINGLE.format(table=table, columns=_COLUMNS.format(id="i")))
            return
        cursor.execute("CREATE TABLE IF NOT EXISTS numbers (n INT PRIMARY KEY)")
        numbers = ", ".join(f"({n})" for n in range(rows_per_transaction))
        cursor.execute(f"REPLACE INTO numbers VALUES {numbers}")
        columns = _COLUMNS.format(id=f"(first + i * {rows_per_transaction} + n)")
        cursor.execute(_MANY.format(table=table, columns=columns, rows=rows_per_transaction))


def fill(
    server: MysqlServer, table: str, *, transactions: int, rows_per_transaction: int
) -> Waiting:
    """Commit the transactions, in a binlog file of their own, and say what waits there.

    Needs `create_table`. Raises Halt when the binlog does not hold as many transactions.
    """
    first_file = _rotate(server)
    start = executed_set(server)
    share, rest = divmod(transactions, WRITERS)
    counts = [share + (1 if writer < rest else 0) for writer in range(WRITERS)]
    firsts = [rows_per_transaction * sum(counts[:writer]) + 1 for writer in range(WRITERS)]

    def write(writer: int) -> None:
        with server.connect(database=DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute(f"CALL fill_{table}({firsts[writer]}, {counts[writer]})")

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, range(WRITERS)))
    end = executed_set(server)
    _check_count(server, start, end, transactions)
    rows = transactions * rows_per_transaction
    return Waiting(table, transactions, rows, start, end, first_file)


def _rotate(server: MysqlServer) -> str:
    """Begin a new binlog file, so that no reader has to skip what lies before; give its name."""
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
