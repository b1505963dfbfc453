"""Finds the dialect of a database by its URL, and refuses what cannot be a target of a query.

A server that is a shard of the stream is refused, because the query would follow its own tables.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from sqlalchemy import URL, Connection, make_url
from sqlalchemy.exc import ArgumentError

from credentials.secret import Secret
from event_token import Flavor, MariadbGtidSet, MysqlGtidSet
from event_token.errors import UsageError
from sinks.database.catalog import LEFT, FollowerCatalog
from sinks.database.dialect import Dialect, rows_of
from sinks.database.mysql_dialect import MysqlDialect
from sinks.database.options import DatabaseOptions
from sinks.database.postgresql import PostgresDialect
from topics.kafka.client import ClientConfig
from topics.kafka.lookups import Lookups
from topics.keyspace.topology import read_topology
from topics.progress.history import ProgressHistory
from topics.progress.record import LastTransaction, Progress
from topics.records.table_shape import SchemaIds

POSTGRESQL = ("postgresql", "postgres")
MYSQL = ("mysql", "mariadb")
# Parameters of a URL that say where the password is. A command is words, quoted as for a shell.
PASSWORD_SOURCES = ("password_file", "password_command", "password_valid_s")


def parse_url(url: str) -> URL:
    """Parse a URL. UsageError, which does not show it: it may hold a password."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "--to is not the URL of a database: postgresql://USER@HOST/DATABASE, or mysql://..."
        ) from None


def dialect_of(url: str, *, replaces_nul: bool = False) -> Dialect:
    """Return the dialect of a URL. UsageError if there is none.

    The URL may say where the password is, which is then read for each connection.
    """
    given = parse_url(url)
    parsed = given.difference_update_query(PASSWORD_SOURCES)
    name = parsed.get_backend_name()
    dialect: Dialect
    if name in POSTGRESQL:
        dialect = PostgresDialect(
            parsed.set(drivername="postgresql+psycopg"), replaces_nul=replaces_nul
        )
    elif name in MYSQL:
        dialect = MysqlDialect(parsed.set(drivername="mysql+pymysql"))
    else:
        raise UsageError(
            f"--to: {name}:// cannot be a target: name a PostgreSQL "
            f"(postgresql://USER@HOST/DATABASE), MySQL (mysql://...) or MariaDB (mariadb://...) "
            f"server"
        )
    dialect.password = _password(given)
    return dialect


def has_password(url: URL) -> bool:
    """Tell whether a URL has a password, or says where it is."""
    return url.password is not None or any(name in url.query for name in PASSWORD_SOURCES)


def _password(url: URL) -> Secret | None:
    """Return where the password is, None if the URL has it or none is needed. UsageError."""
    given = {name: url.query[name] for name in PASSWORD_SOURCES if name in url.query}
    if not given:
        return None
    file, command, valid = (str(given.get(name, "")) for name in PASSWORD_SOURCES)
    try:
        arguments = tuple(shlex.split(command))
    except ValueError:  # a quotation that does not end
        arguments = ()
    problem = ""
    if url.password is not None or bool(file) is bool(command):
        problem = "the password has to come from one place: the URL, a file or a command"
    elif file and not Path(file).is_absolute():
        problem = f"password_file={file}: tasks have other working folders, so name its whole path"
    elif command and not arguments:
        problem = f"password_command={command} is not a program with its arguments"
    elif not valid.isdecimal() and valid:
        problem = f"password_valid_s={valid} is not a number of seconds"
    if problem:
        raise UsageError(f"--to: {problem}")
    return Secret(
        f"{url.username}@{url.host}",
        Path(file) if file else None,
        command=arguments,
        valid_s=float(valid or 0),
    )


def refuse_own_source(url: str, kafka: ClientConfig, keyspace: str, schema_ids: SchemaIds) -> None:
    """UsageError if the target is a server of a shard that serves."""
    if isinstance(dialect_of(url), MysqlDialect):
        refuse_shard(url, _newest_progress(kafka, keyspace, schema_ids))


def refuse_shard(url: str, shards: Mapping[str, Progress]) -> None:
    """UsageError if the target is a server of one of these shards, with their newest progress."""
    dialect = dialect_of(url)
    with dialect.connected() as connection:
        shard = _shard_of(connection, shards)
    if shard is not None:
        raise UsageError(
            f"{dialect.place} is a server of shard {shard}: the query would follow its own tables. "
            f"Write to another server, or name the tables to follow with --table"
        )


def _newest_progress(
    kafka: ClientConfig, keyspace: str, schema_ids: SchemaIds
) -> dict[str, Progress]:
    topology = read_topology(kafka, keyspace)
    serving = () if topology is None else topology.serving()
    with Lookups(kafka) as lookups:
        found = lookups.results(
            {each.name: ProgressHistory(keyspace, each.name, schema_ids).last() for each in serving}
        )
    return {shard: last.progress for shard, last in found.items() if last is not None}


def _shard_of(connection: Connection, shards: Mapping[str, Progress]) -> str | None:
    """Ask the server which shard it is, since a URL may name it in many ways; None: no shard."""
    is_mariadb = getattr(connection.dialect, "is_mariadb", False)
    flavor = Flavor.MARIADB if is_mariadb else Flavor.MYSQL
    is_one = _is_mariadb_of if is_mariadb else _is_mysql_of
    mine = (shard for shard, at in shards.items() if at.flavor == flavor and is_one(connection, at))
    return next(mine, None)


def _is_mysql_of(connection: Connection, at: Progress) -> bool:
    """Tell by the UUID: of the server that was read, or of one that wrote transactions."""
    [(uuid,)] = rows_of(connection, "SELECT @@server_uuid")
    own = UUID(str(uuid))
    wrote = {UUID(bytes=raw) for (raw, _), _ in MysqlGtidSet.parse(at.position).servers}
    return own in wrote or any(last.server.lower() == str(own) for last in at.lasts)


def _is_mariadb_of(connection: Connection, at: Progress) -> bool:
    """Tell by the server id, which others may have too, and the place of a last transaction."""
    if not at.lasts:
        return False
    [(number,)] = rows_of(connection, "SELECT @@server_id")
    mine = (last for last in at.lasts if last.server == str(number))
    return any(_has_at_its_place(connection, last) for last in mine)


def _has_at_its_place(connection: Connection, last: LastTransaction) -> bool:
    values = {"file": last.binlog_file, "pos": last.binlog_pos}
    [(there,)] = rows_of(connection, "SELECT BINLOG_GTID_POS(:file, :pos)", values)
    if there is None:
        return False
    [(domain, _, number)] = MariadbGtidSet.parse(last.gtid).domains
    before = {d: n for d, _, n in MariadbGtidSet.parse(str(there)).domains}
    return before.get(domain, 0) == number - 1


def left_tables(url: str, options: DatabaseOptions) -> tuple[tuple[str, str], ...]:
    """Return the (database, table) that the target has and a query leaves out.

    UsageError if it follows one that an earlier query has left out: the changes since then are not
    in it, which no reader would notice.
    """
    dialect = dialect_of(url)
    catalog = FollowerCatalog(dialect, options.follower)
    with dialect.connected() as connection:
        known = catalog.tables(connection)
    chosen = {name for name in known if not options.tables or ".".join(name) in options.tables}
    for name in sorted(chosen):
        if known[name].state == LEFT:
            table = known[name].table
            raise UsageError(
                f"{catalog.where}: an earlier run left out {'.'.join(name)} (--table), so its "
                f"table lacks the changes since then. Name the other tables with --table. To "
                f"follow it again, drop {dialect.table(table.schema, table.name)} and "
                f"{dialect.internal(table.homes)}, delete its row from "
                f"{dialect.internal('tables')}, start, and copy the table again"
            )
    return tuple(sorted(known.keys() - chosen))
