"""Runs SQL on a local server and prints the results."""

import pymysql
from pymysql.constants import CLIENT
from rich.console import Console
from rich.table import Table

from event_token import UsageError
from shardstream.local.database_server import DatabaseConnection, DatabaseServer


def run_sql(server: DatabaseServer, statements: str, console: Console) -> None:
    """Run statements as root, one after the other, and print each result.

    UsageError with the server's message at the first statement that fails, and where the server
    does not run.
    """
    try:
        with server.connect(client_flag=CLIENT.MULTI_STATEMENTS) as connection:
            _run(connection, statements, console)
    except pymysql.MySQLError as error:
        raise UsageError(f"{server.name}: {error.args[-1]}") from error


def _run(connection: DatabaseConnection, statements: str, console: Console) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statements)
        while True:
            if cursor.description is None:
                console.print(f"{cursor.rowcount} row(s) affected")
            else:
                table = Table(*(column[0] for column in cursor.description))
                for row in cursor.fetchall():
                    table.add_row(*map(str, row))
                console.print(table)
            if not cursor.nextset():
                return
