"""Finds the dialect of a database by its URL."""

from collections.abc import Mapping

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from event_token.errors import UsageError
from spark_consumers.second_database.dialect import Dialect
from spark_consumers.second_database.general.dialect import GeneralDialect
from spark_consumers.second_database.general.duckdb import DuckdbDialect
from spark_consumers.second_database.general.sqlite import SqliteDialect
from spark_consumers.second_database.mysql.dialect import MysqlDialect
from spark_consumers.second_database.postgresql import PostgresDialect

POSTGRESQL = ("postgresql", "postgres")
MYSQL = ("mysql", "mariadb")
GENERAL: Mapping[str, type[GeneralDialect]] = {"sqlite": SqliteDialect, "duckdb": DuckdbDialect}
REFUSED: Mapping[str, str] = {
    "mssql": "SQL Server has no booleans",
    "oracle": "Oracle takes empty texts for NULL, and DDL ends its transactions",
}


def parse_url(url: str) -> URL:
    """Parse a URL. UsageError, which does not show it: it may hold a password."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "--to is not the URL of a database: postgresql://USER@HOST/DATABASE, or mysql://..."
        ) from None


def dialect_of(url: str, *, replaces_nul: bool = False) -> Dialect:
    """Return the dialect of a URL. UsageError if there is none, or its driver is missing."""
    parsed = parse_url(url)
    name = parsed.get_backend_name()
    if name in POSTGRESQL:
        return PostgresDialect(
            parsed.set(drivername="postgresql+psycopg"), replaces_nul=replaces_nul
        )
    if name in MYSQL:
        return MysqlDialect(parsed.set(drivername="mysql+pymysql"))
    if name in REFUSED:
        raise UsageError(f"--to: {name}:// cannot be a target: {REFUSED[name]}")
    return GENERAL.get(name, GeneralDialect)(parsed)
