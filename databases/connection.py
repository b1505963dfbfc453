"""Connections to a database server, and the one place where PyMySQL's errors become ours."""

import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pymysql.connections import Connection
from pymysql.constants import CLIENT, ER
from pymysql.err import MySQLError

from databases.error_codes import ACCESS_REFUSED, CLIENT_ERRORS, LOGIN_REFUSED, is_outage
from databases.errors import LoginRefused, ServerLost, ServerRefused, ServerSilent
from databases.internal_tables import create_internal_tables
from databases.server import DatabaseServer, TlsSettings
from databases.session import UTF8_SESSION, check_session
from databases.sql import rows
from event_token.errors import ShardstreamError

CONNECT_TIMEOUT_S: Final = 10
# Queries take milliseconds; a server that needs longer is as good as gone.
QUERY_TIMEOUT_S: Final = 30

# Two server settings would hide something: a row limit, which DEFAULT would restore, and from MySQL
# 8.0.30 on the invisible primary keys that it generates. MariaDB reads the second as a comment.
_TIME_ZONE: Final = "+00:00"
_ROWS_MAX: Final = "18446744073709551615"
_SESSION: Final = (
    f"SET SESSION time_zone = '{_TIME_ZONE}', sql_select_limit = {_ROWS_MAX} "
    "/*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
)
_ASKED: Final = {"time_zone": _TIME_ZONE, "sql_select_limit": _ROWS_MAX, **UTF8_SESSION}

# (server's error number, its text, where) -> the project's error; None: let PyMySQL's error pass.
Translate = Callable[[int, str, str], ShardstreamError | None]


def open_connection(
    server: DatabaseServer,
    *,
    answer_timeout_s: int = QUERY_TIMEOUT_S,
    many_statements: bool = False,
) -> Any:
    """A PyMySQL connection in UTC and autocommit that is shown all rows and keys.

    `many_statements` allows several statements per packet. Raises ServerRefused on credentials,
    privileges, certificates or what it was asked for, ServerSilent where none answers, ServerLost
    on anything else.
    """
    arguments = {
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": answer_timeout_s,
        "write_timeout": answer_timeout_s,
        "client_flag": CLIENT.MULTI_STATEMENTS if many_statements else 0,
        "init_command": _SESSION,
        **_tls_arguments(server.tls),
    }
    password = server.current_password()
    try:
        return _connect(server, password, arguments)
    except LoginRefused:
        # A password that was kept may have been changed before its time.
        renewed = server.renewed_password(password)
        if renewed == password:
            raise
        return _connect(server, renewed, arguments)


def _connect(server: DatabaseServer, password: str, arguments: dict[str, Any]) -> Any:
    with server_errors(server, "connecting to", _not_connected):
        connection = Connection(
            host=server.host,
            port=server.port,
            user=server.user,
            password=password,
            **arguments,
        )
        try:
            check_session(connection, server.name, _ASKED)
        except BaseException:
            connection.close()
            raise
    return connection


def _tls_arguments(tls: TlsSettings | None) -> dict[str, Any]:
    # By default PyMySQL uses TLS where it is offered and verifies nothing: neither is wanted.
    if tls is None:
        return {"ssl_disabled": True}
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ServerRefused(f"TLS files cannot be used ({tls}): {error}") from error
    # Certificates that MySQL generates lack the key ids that the strict mode of 3.13 asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return {"ssl": context}


def known_error(code: int, text: str, where: str) -> ShardstreamError | None:
    """ServerRefused, ServerLost, or None for an error of the statement itself. Pure."""
    message = f"{where}: server error {code}: {text}"
    if code in LOGIN_REFUSED:
        return LoginRefused(message)
    if code in ACCESS_REFUSED:
        return ServerRefused(message)
    if is_outage(code):
        return ServerLost(message)
    return None


def lost_or_refused(code: int, text: str, where: str) -> ShardstreamError:
    """ServerRefused, or ServerLost for all other errors. Pure."""
    return known_error(code, text, where) or ServerLost(f"{where}: server error {code}: {text}")


def _not_connected(code: int, text: str, where: str) -> ShardstreamError:
    if code in CLIENT_ERRORS and code not in ACCESS_REFUSED:
        return ServerSilent(f"{where}: server error {code}: {text}")
    return lost_or_refused(code, text, where)


@contextmanager
def server_errors(
    server: DatabaseServer, doing: str, translate: Translate = known_error
) -> Iterator[None]:
    """Translate PyMySQL's errors inside the block; no message holds the password."""
    where = f"{doing} {server.name} as {server.user}"
    try:
        yield
    except MySQLError as error:
        original = getattr(error, "original_exception", None)
        if isinstance(original, ssl.SSLError):
            raise ServerRefused(f"{where}: TLS failed: {original}") from error
        translated = translate(error_code(error), _text(error), where)
        if translated is None:
            raise
        raise translated from error
    except OSError as error:
        raise ServerLost(f"{where}: {error}") from error


def is_transient(error: MySQLError) -> bool:
    """Whether the connection or the account is at fault, not the statement."""
    code = error_code(error)
    return code in ACCESS_REFUSED or is_outage(code)


def error_code(error: MySQLError) -> int:
    """The server's error number; 0 where the client raised it without one."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def error_text(error: MySQLError) -> str:
    """The server's error number and text."""
    return f"server error {error_code(error)}: {_text(error)}"


def _text(error: MySQLError) -> str:
    return str(error.args[1]) if len(error.args) > 1 else str(error)


_TABLE_MISSING: Final = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})


def rows_if_there(
    connection: Any, query: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]] | None:
    """All rows of a query over our tables; None if one of them does not exist."""
    try:
        return rows(connection, query, values)
    except MySQLError as error:
        if error_code(error) not in _TABLE_MISSING:
            raise
    return None


def write_row(connection: Any, table: str, statement: str, values: Sequence[Any]) -> int:
    """Execute a statement that writes to one of our tables; create it first if it is missing.

    Return how many rows it has affected.
    """
    with connection.cursor() as cursor:
        try:
            return int(cursor.execute(statement, values))
        except MySQLError as error:
            if error_code(error) not in _TABLE_MISSING:
                raise
            create_internal_tables(connection, (table,))
            return int(cursor.execute(statement, values))
