"""Readers under test: the documented account, any driver, hooks between statements."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import mysql.connector
import pymysql
from pymysql.cursors import DictCursor

from caching.reading.connections import Connect
from caching.reading.fresh_reader import FreshReader
from event_token import EventToken, Flavor
from tests.database_servers import DatabaseFixture
from tests.repository import ROOT

KEYSPACE = "commerce"
SHARD = "-80"
PASSWORD = "r-7-q"  # of the account `reader`
# The commit time of a heartbeat row in the future, as no clock of a test reaches it.
BEAT_US = 4_102_444_800_000_000
# The true time at which it was written: a reader believes none that is in the future.
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
WRITTEN_US = 1_767_225_600_000_000

_GRANT = re.compile(r"^(GRANT SELECT ON (\S+) TO reader@'%');$", re.MULTILINE)


@dataclass(frozen=True)
class Pair:
    """A primary, its replica, and a schema with the table `t (id)`."""

    primary: DatabaseFixture
    replica: DatabaseFixture
    name: str


def documented_grants(flavor: Flavor) -> dict[str, str]:
    """What docs/operations.md grants the account of fresh reads: the statements by their object."""
    text = (ROOT / "docs/operations.md").read_text("utf-8")
    found = {on: statement for statement, on in _GRANT.findall(text)}
    assert len(found) > 1
    return {on: text for on, text in found.items() if flavor is Flavor.MYSQL or on[0] == "_"}


def run(database: DatabaseFixture, *statements: str) -> None:
    """Run statements as root."""
    with database.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def allow_reads(database: DatabaseFixture, schema: str) -> None:
    """Create the account `reader` with what the page grants, and SELECT on the schema."""
    run(
        database,
        f"CREATE USER IF NOT EXISTS reader@'%' IDENTIFIED BY '{PASSWORD}'",
        *documented_grants(database.flavor).values(),
        *(["GRANT REPLICA MONITOR ON *.* TO reader@'%'"] * (database.flavor is Flavor.MARIADB)),
        f"GRANT SELECT, INSERT ON {schema}.* TO reader@'%'",
    )


def by_pymysql(database: DatabaseFixture, **arguments: Any) -> Connect:
    """The account's connections; autocommit is off, as PEP 249 has it."""
    return lambda: pymysql.connect(
        host=database.host,
        port=database.port,
        user="reader",
        password=PASSWORD,
        **arguments,
    )


def by_pymysql_dicts(database: DatabaseFixture) -> Connect:
    """Connections whose cursors return dicts."""
    return by_pymysql(database, cursorclass=DictCursor)


def by_connector(database: DatabaseFixture) -> Connect:
    """Connections of MySQL's own driver, which MariaDB tells no collation that it knows."""
    return lambda: mysql.connector.connect(
        host=database.host,
        port=database.port,
        user="reader",
        password=PASSWORD,
        collation="utf8mb4_general_ci",
    )


DRIVERS = (by_pymysql, by_pymysql_dicts, by_connector)


def reader_of(
    *databases: DatabaseFixture, connect: Callable[[DatabaseFixture], Connect] = by_pymysql
) -> FreshReader:
    """A reader of the shard on these servers."""
    return FreshReader(KEYSPACE, SHARD, list(map(connect, databases)), flavor=databases[0].flavor)


class HookedConnection:
    """A connection that calls `before(statement)` ahead of each statement."""

    def __init__(self, connection: Any, before: Callable[[str], None]) -> None:
        self._connection = connection
        self._before = before

    def cursor(self) -> "HookedCursor":
        return HookedCursor(self._connection.cursor(), self._before)

    def close(self) -> None:
        self._connection.close()


class HookedCursor:
    """Its cursor."""

    def __init__(self, cursor: Any, before: Callable[[str], None]) -> None:
        self._cursor = cursor
        self._before = before

    def execute(self, statement: str, args: Sequence[Any] | None = None) -> Any:
        self._before(statement)
        return self._cursor.execute(statement, args)

    @property
    def description(self) -> Any:
        return self._cursor.description

    def fetchall(self) -> Any:
        return self._cursor.fetchall()

    def close(self) -> None:
        self._cursor.close()


def hooked(connect: Connect, before: Callable[[str], None]) -> Connect:
    """A `Connect` whose connections call `before` ahead of each statement."""
    return lambda: HookedConnection(connect(), before)


def server_name(database: DatabaseFixture) -> str:
    """The server as it calls itself."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CONCAT(@@hostname, ':', @@port)")
        return str(cursor.fetchall()[0][0])


def written(reader: FreshReader, primary: DatabaseFixture, statement: str) -> EventToken:
    """Run a write as an application does, and return the token of its commit."""
    with primary.connect(autocommit=False) as connection:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        connection.commit()
        return reader.committed(connection)
