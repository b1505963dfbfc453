"""Lists at once everything on a server that would stop the stream or make it wrong."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from databases.connection import open_connection
from databases.errors import ServerLost
from databases.grants import Account, read_account
from databases.server_facts import version_of
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.errors import Problem
from producers.preflight.durability import durability_problems
from producers.preflight.grants import missing_grants
from producers.preflight.replication import replication_problems
from producers.replication.family import MariadbFamily, family_of
from producers.replication.stream import server_errors
from producers.settings import ServerSettings

MYSQL_VERSION_MIN: Final = (8, 0, 14)  # binlog_row_metadata, and commit times in microseconds
MARIADB_VERSION_MIN: Final = (10, 5, 0)  # binlog_row_metadata
# From here on the SQL layer executes cascades and logs them, unless InnoDB is set to do it.
MYSQL_LOGS_CASCADES: Final = (9, 6, 0)
# Bits of InnoDB's foreign keys: on delete and on update, cascade and set null.
_CASCADE_BITS: Final = 1 | 2 | 4 | 8
# The value of a variable that the server does not have.
ABSENT: Final = "UNKNOWN TO THIS SERVER"
# Not more names than fit on a screen.
_TABLES_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A server variable, the values that work, why, and the fix for others."""

    variable: str
    works: Callable[[str], bool]
    why: str
    fix: str


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.upper() in values


def _persist(variable: str, value: str) -> str:
    return f"SET PERSIST {variable} = {value};"


def _global(variable: str, value: str) -> str:
    return f"SET GLOBAL {variable} = {value}; and the same in the server's option file"


_LOG_BIN: Final = _Wanted(
    "log_bin",
    _is("ON", "1"),
    "there is no binlog to read",
    "start the server with --log-bin",
)
_STATEMENTS: Final = "statements instead of rows would be logged"
_NAMES: Final = "without it the binlog has no column names, signs, character sets and keys"
_MYSQL_WANTED: Final = (
    _LOG_BIN,
    _Wanted("binlog_format", _is("ROW"), _STATEMENTS, _persist("binlog_format", "ROW")),
    _Wanted("binlog_row_metadata", _is("FULL"), _NAMES, _persist("binlog_row_metadata", "FULL")),
    _Wanted(
        "gtid_mode",
        _is("ON"),
        "the stream is followed by GTIDs",
        "SET PERSIST enforce_gtid_consistency = ON; then gtid_mode step by step: "
        "OFF_PERMISSIVE, ON_PERMISSIVE, ON (SET PERSIST gtid_mode = ...)",
    ),
    _Wanted(
        "enforce_gtid_consistency",
        _is("ON"),
        "a transaction could be logged that has no single GTID",
        _persist("enforce_gtid_consistency", "ON"),
    ),
)
_MARIADB_WANTED: Final = (
    _LOG_BIN,
    _Wanted("binlog_format", _is("ROW"), _STATEMENTS, _global("binlog_format", "ROW")),
    _Wanted("binlog_row_metadata", _is("FULL"), _NAMES, _global("binlog_row_metadata", "FULL")),
    _Wanted(
        "gtid_strict_mode",
        _is("ON", "1"),
        "sequence numbers could decrease within a domain, and positions would claim too much",
        _global("gtid_strict_mode", "ON"),
    ),
)


def preflight(
    server: ServerSettings,
    flavor: Flavor,
    *,
    accept_unlogged_cascades: bool = False,
    accept_loss_at_server_crash: bool = False,
    more: Callable[[Any], list[Problem]] = lambda _connection: [],
) -> list[Problem]:
    """Connect and list every problem of the server's settings and the account's grants.

    An unreachable server, refused credentials and failed TLS are problems too. No message shows a
    secret. `more` looks for further problems over the same connection.
    """
    try:
        connection = open_connection(server)
    except ShardstreamError as error:
        fix = "check host, port, account, password and TLS files, and that the server runs"
        return [Problem(str(error), server.name, fix, passing=isinstance(error, ServerLost))]
    try:
        if not server.read:
            return [] if accept_loss_at_server_crash else _of_unread(connection, server, flavor)
        problems = check_connection(
            connection,
            server,
            flavor,
            accept_unlogged_cascades=accept_unlogged_cascades,
            accept_loss_at_server_crash=accept_loss_at_server_crash,
        )
        with server_errors(server, "checking"):
            return problems + more(connection)
    finally:
        connection.close()


def check_connection(
    connection: Any,
    server: ServerSettings,
    flavor: Flavor,
    *,
    accept_unlogged_cascades: bool = False,
    accept_loss_at_server_crash: bool = False,
) -> list[Problem]:
    """The same over an open connection. Raises ServerLost when it breaks."""
    with server_errors(server, "checking the settings of"):
        [(version,)] = rows(connection, "SELECT @@version")
        there = Flavor.MARIADB if "mariadb" in version.lower() else Flavor.MYSQL
        if there is not flavor:
            what = f"the server is {there.value} {version}, but the settings say {flavor.value}"
            return [Problem(what, server.name, f'set flavor = "{there.value}" for this shard')]
        family = family_of(flavor)
        account = read_account(connection)
        # A missing grant is listed below.
        is_replica = account.has("REPLICATION CLIENT") and family.is_replica(connection)
        problems = [
            *_version_problems(server, flavor, version),
            *_variable_problems(connection, server, flavor),
            *replication_problems(connection, server, family, account, is_replica=is_replica),
            *_group_problems(connection, server),
            *missing_grants(account, server, flavor),
        ]
        if not (accept_loss_at_server_crash or is_replica):
            problems += durability_problems(connection, server, flavor)
        if not accept_unlogged_cascades:
            problems += _cascade_problems(
                connection, server, flavor, account, is_replica=is_replica
            )
    return problems


def _of_unread(connection: Any, server: ServerSettings, flavor: Flavor) -> list[Problem]:
    """What a primary that is not streamed from can lose, its replicas then lack."""
    with server_errors(server, "checking the settings of"):
        if not read_account(connection).has("REPLICATION CLIENT"):
            return []
        if family_of(flavor).is_replica(connection):
            return []
        return durability_problems(connection, server, flavor)


def _version_problems(server: ServerSettings, flavor: Flavor, version: str) -> list[Problem]:
    oldest = MYSQL_VERSION_MIN if flavor is Flavor.MYSQL else MARIADB_VERSION_MIN
    if version_of(version) >= oldest:
        return []
    wanted = ".".join(map(str, oldest))
    what = f"version {version} does not log table metadata (binlog_row_metadata)"
    return [Problem(what, server.name, f"upgrade to {wanted} or later")]


def _variable_problems(connection: Any, server: ServerSettings, flavor: Flavor) -> list[Problem]:
    wanted = _MYSQL_WANTED if flavor is Flavor.MYSQL else _MARIADB_WANTED
    names = ", ".join(f"'{item.variable}'" for item in wanted)
    found = dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))
    problems = []
    for item in wanted:
        value = found.get(item.variable, ABSENT)
        if not item.works(value):
            shown = "''" if value == "" else value
            what = f"{item.variable} is {shown}: {item.why}"
            problems.append(Problem(what, server.name, item.fix))
    return problems


def _group_problems(connection: Any, server: ServerSettings) -> list[Problem]:
    """A member of a group reports no source, so a secondary looks like a primary."""
    found = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'group_replication_group_name'")
    if not any(name for _, name in found):
        return []
    what = (
        "the server is configured as a member of a group (Group Replication, InnoDB Cluster), and "
        "its role within the group is not followed"
    )
    fix = (
        "follow a server that replicates from the group over a separate channel and is no member; "
        "on a server that has left its group for good: UNINSTALL PLUGIN group_replication;"
    )
    return [Problem(what, server.name, fix)]


def logs_cascades(connection: Any, *, is_replica: bool) -> bool:
    """Whether a server logs the rows that its foreign keys change.

    A replica logs what its source has logged; cascades of an older source it executes unlogged.
    """
    if is_replica:
        return False
    [(version,)] = rows(connection, "SELECT @@version")
    if "mariadb" in version.lower() or version_of(version) < MYSQL_LOGS_CASCADES:
        return False
    native = rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return not native or native[0][1] == "OFF"


def _cascade_problems(
    connection: Any,
    server: ServerSettings,
    flavor: Flavor,
    account: Account,
    *,
    is_replica: bool,
) -> list[Problem]:
    """Foreign keys whose cascades the server executes without logging them."""
    if logs_cascades(connection, is_replica=is_replica):
        return []
    accept = "or set accept_unlogged_cascades = true and accept that such changes are lost"
    if logs_cascades(connection, is_replica=False):
        accept += " (none are, if this replica's source logs them)"
    if not account.has("PROCESS"):
        what = (
            "this server does not log the rows that foreign keys cascade to, and whether there are "
            "such keys is not visible without the PROCESS privilege"
        )
        return [Problem(what, server.name, f"GRANT PROCESS ON *.* TO {account.name}; {accept}")]
    view = (
        "INNODB_SYS_FOREIGN" if isinstance(family_of(flavor), MariadbFamily) else "INNODB_FOREIGN"
    )
    bits = f"type & {_CASCADE_BITS} <> 0"
    found = rows(
        connection,
        f"SELECT id, for_name, ref_name FROM information_schema.{view} WHERE {bits} "  # noqa: S608 - constants
        f"ORDER BY id LIMIT {_TABLES_SHOWN_MAX}",
    )
    return [
        Problem(
            f"foreign key {key} (CASCADE or SET NULL) changes table {child} with {parent}, and "
            f"this {'replica' if is_replica else 'server'} does not log such changes by itself",
            server.name,
            f"make the key RESTRICT and such changes explicit, {accept}",
        )
        for key, child, parent in found
    ]
