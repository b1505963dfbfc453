"""Runs SQL on a local server and prints the results."""

import readline  # noqa: F401 - gives input() history and editing
import sys

import pymysql
from pymysql.constants import CLIENT
from rich.console import Console
from rich.table import Table

from event_token import UsageError
from shardstream.local.database_server import DatabaseConnection, LocalDatabase


def run_sql(server: LocalDatabase, statements: str, console: Console) -> None:
    """Run statements as root, one after the other, and print each result.

    UsageError with the server's message at the first statement that fails, and where the server
    does not run.
    """
    try:
        with _connect(server) as connection:
            _run(connection, statements, console)
    except pymysql.MySQLError as error:
        raise UsageError(f"{server.name}: {error.args[-1]}") from error


def prompt_sql(server: LocalDatabase, prompt: str, console: Console) -> None:
    """Read statements from the terminal, each up to a line that ends with `;`, and run them.

    Ends at the end of the input (Ctrl-D). A statement that fails prints the server's message.
    UsageError where the server does not run.
    """
    try:
        connection = _connect(server)
    except pymysql.MySQLError as error:
        raise UsageError(f"{server.name}: {error.args[-1]}") from error
    with connection:
        while (statement := _read_statement(prompt)) is not None:
            try:
                _run(connection, statement, console)
            except pymysql.MySQLError as error:
                console.print(str(error.args[-1]), style="red", markup=False)


def _read_statement(prompt: str) -> str | None:
    """Return the text up to a line that ends with `;`; None at the end of the input."""
    lines: list[str] = []
    while True:
        try:
            line = input("...> " if lines else prompt)
        except EOFError:
            sys.stdout.write("\n")
            return None
        if line.strip() or lines:
            lines.append(line)
        if line.rstrip().endswith(";"):
            return "\n".join(lines)


def _connect(server: LocalDatabase) -> DatabaseConnection:
    return server.connect(client_flag=CLIENT.MULTI_STATEMENTS)


def _run(connection: DatabaseConnection, statements: str, console: Console) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)
        while True:
            if cursor.description is None:
                console.print(f"{cursor.rowcount} row(s) affected")
            else:
                table = Table(*(column[0] for column in cursor.description))
                for row in cursor.fetchall():
                    table.add_row(*("NULL" if value is None else str(value) for value in row))
                console.print(table)
            if not cursor.nextset():
                return
