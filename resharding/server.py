"""Sessions on the database servers of a reshard, with an account that may write."""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from event_token import Flavor
from resharding.errors import ServerGone, ServerRefuses

CONNECT_TIMEOUT_S: Final = 10
# A statement that waits for a lock ends by the server's own limit (50 s by default) first.
ANSWER_TIMEOUT_S: Final = 120

# Access denied in its forms, no such grant, locked account, expired password, TLS demanded.
_REFUSED: Final = frozenset(
    {1044, 1045, 1130, 1142, 1143, 1227, 1251, 1698, 1820, 1862, 2026, 2061, 3118, 3159, 4151}
)
# Lost, refused or killed connections, shutdown, a deadlock, a lock not had in time, read only (a
# failover).
_PASSING: Final = frozenset(
    {1040, 1053, 1077, 1152, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1317, 1792, 1927}
)
# Two settings of the server that would hide something: a limit of rows, which DEFAULT would give
# again, and from MySQL 8.0.30 on the invisible keys that it makes itself. MariaDB takes the second
# for a comment.
_SESSION: Final = (
    "SET SESSION time_zone = '+00:00', sql_select_limit = 18446744073709551615 "
    "/*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
)
_CLIENT_ERRORS: Final = range(2000, 2100)


@dataclass(frozen=True, slots=True)
class ReshardServer:
    """The primary of one shard and the account that a reshard uses there.

    `ca`, `cert`, `key`: PEM files; without `ca` the connection is in clear text.
    """

    shard: str
    flavor: Flavor
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def name(self) -> str:
        """How messages name the server."""
        return f"{self.host}:{self.port} (shard {self.shard})"


def open_session(server: ReshardServer, *, many_statements: bool = False) -> Any:
    """Connect, in UTC and autocommit, shown all rows and keys.

    `many_statements` lets one packet hold several.

    ServerRefuses on credentials, rights and certificates, ServerGone when it is not reached.
    """
    with server_errors(server, "connecting to"):
        return Connection(
            host=server.host,
            port=server.port,
            user=server.user,
            password=server.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=ANSWER_TIMEOUT_S,
            write_timeout=ANSWER_TIMEOUT_S,
            client_flag=CLIENT.MULTI_STATEMENTS if many_statements else 0,
            init_command=_SESSION,
            **_tls_arguments(server),
        )


def _tls_arguments(server: ReshardServer) -> dict[str, Any]:
    # By default PyMySQL takes TLS where it is offered and verifies nothing: neither is wanted.
    if server.ca is None:
        return {"ssl_disabled": True}
    try:
        context = ssl.create_default_context(cafile=server.ca)
        if server.cert is not None:
            context.load_cert_chain(server.cert, server.key)
    except (OSError, ssl.SSLError) as error:
        raise ServerRefuses(f"{server.name}: TLS files cannot be used: {error}") from error
    # Certificates that MySQL makes itself lack the key ids that the strict mode of 3.13 asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return {"ssl": context}


@contextmanager
def server_errors(server: ReshardServer, doing: str) -> Iterator[None]:
    """Turn lost connections and refusals into the project's errors; others pass as they are."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        code = error_code(error)
        where = f"{doing} {server.name} as {server.user}: {error_text(error)}"
        if code in _REFUSED:
            raise ServerRefuses(where) from error
        if code == 0 or code in _PASSING or code in _CLIENT_ERRORS:
            raise ServerGone(where) from error
        raise
    except OSError as error:
        raise ServerGone(f"{doing} {server.name} as {server.user}: {error}") from error


def is_passing(error: pymysql.err.MySQLError) -> bool:
    """Whether the connection or the account is at fault, not what was asked."""
    code = error_code(error)
    return code == 0 or code in _REFUSED or code in _PASSING or code in _CLIENT_ERRORS


def error_code(error: pymysql.err.MySQLError) -> int:
    """The server's number of an error; 0 where the client made it."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def error_text(error: pymysql.err.MySQLError) -> str:
    """The server's words with their number."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return f"server error {error_code(error)}: {text}"


def rows(connection: Any, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(query, tuple(values) or None)
        return list(cursor.fetchall())


def quoted(name: str) -> str:
    """An identifier as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"
