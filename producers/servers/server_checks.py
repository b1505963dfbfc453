"""What a server is checked for before it is followed, in one list: see `preflight`.

A check takes a server and returns problems, for which the server is refused, and warnings as text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pymysql.err import MySQLError

from databases.catalog import cascading_keys
from databases.connection import error_code
from databases.grants import Account, privileges_on, read_account
from databases.internal_tables import INTERNAL_DATABASE
from databases.platforms import (
    NOT_SHOWN,
    RETENTION,
    read_retention,
    recognise,
    way_to_set,
)
from databases.server import Platform
from databases.server_facts import (
    ServerFacts,
    StatusNotShown,
    binlog_files,
    facts_of,
    filters_in,
    is_on,
    replica_status,
    version_of,
)
from databases.sql import named_rows, rows
from event_token import Flavor
from producers.clock import clock_ahead_us, now_us
from producers.errors import Problem
from producers.settings import ServerSettings, ShardProducerSettings


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """A server of a shard, over an open connection, and what it says of itself.

    `is_replica` is False where the account may not ask; the missing grant is a problem then.
    `platform`: what the settings say, else what is recognised. `has_binlog`: readers of Aurora
    write none.
    """

    connection: Any
    server: ServerSettings
    settings: ShardProducerSettings
    version: str
    account: Account
    is_replica: bool
    platform: Platform
    has_binlog: bool

    @classmethod
    def ask(cls, connection: Any, server: ServerSettings, settings: ShardProducerSettings) -> Self:
        """Ask the server; the settings may have another flavor."""
        [(version,)] = rows(connection, "SELECT @@version")
        account = read_account(connection)
        there = facts_of(Flavor.MARIADB if "mariadb" in version.lower() else Flavor.MYSQL)
        is_replica = account.has("REPLICATION CLIENT") and there.is_replica(connection)
        platform = settings.platform or recognise(connection)
        [(log_bin,)] = rows(connection, "SELECT @@GLOBAL.log_bin")
        return cls(
            connection,
            server,
            settings,
            str(version),
            account,
            is_replica,
            platform,
            is_on(log_bin),
        )

    @property
    def flavor(self) -> Flavor:
        """The family that the server belongs to."""
        return Flavor.MARIADB if "mariadb" in self.version.lower() else Flavor.MYSQL

    @property
    def family(self) -> ServerFacts:
        """How to ask servers of its family."""
        return facts_of(self.flavor)

    def problem(self, what: str, fix: str) -> Problem:
        """A problem of this server."""
        return Problem(what, self.server.name, fix)

    def way_to_set(self, name: str, value: str = "") -> str:
        """How a variable of the server, or RETENTION, is set there."""
        return way_to_set(self.platform, self.flavor, name, value)

    def variables(self, *names: str) -> dict[str, str]:
        """Global variables of the server, those that it has."""
        quoted = ", ".join(f"'{name}'" for name in names)
        query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({quoted})"
        return {str(name): str(value) for name, value in rows(self.connection, query)}


Check = Callable[[CheckedServer], list[Problem | str]]

_ON: Final = ("ON", "1")
_MYSQL_SAYS_BINARY_LOG_STATUS: Final = (8, 2, 0)


def _filter_problems(checked: CheckedServer) -> list[Problem | str]:
    """Replication filters. On MySQL the account must be able to read replica status."""
    connection = checked.connection
    states: list[dict[str, Any]] = []
    unseen: list[Problem | str] = []
    shows = binlog_status_statement(checked.version)
    try:
        states += named_rows(connection, shows)
    except MySQLError as error:
        if error_code(error) not in NOT_SHOWN:
            raise
    if not states and checked.has_binlog:
        unseen.append(_unseen_filters(checked, shows))
    if checked.flavor is Flavor.MARIADB:
        # For the default connection; the status of all connections needs one more privilege.
        names = "SHOW GLOBAL VARIABLES LIKE 'replicate\\_%'"
        states.append({str(name): value for name, value in rows(connection, names)})
    if checked.flavor is Flavor.MYSQL or checked.is_replica:
        try:
            states += replica_status(connection, checked.server)
        except StatusNotShown as error:
            what = "the account may not see this replica's filters, which would omit changes"
            unseen.append(checked.problem(what, error.fix))
    found = {name: value for state in states for name, value in filters_in(state).items()}
    return [*(checked.problem(*_filter(*item)) for item in found.items()), *unseen]


def _unseen_filters(checked: CheckedServer, shows: str) -> Problem | str:
    """By the documentation of services nobody can set binlog_do_db and binlog_ignore_db there."""
    what = f"{shows} is refused or shows nothing, so filters of the binlog cannot be seen"
    if checked.platform is not Platform.PLAIN:
        return f"{checked.server.name}: {what}"
    return checked.problem(what, f"let {checked.account.name} execute {shows}")


def binlog_status_statement(version: str) -> str:
    """The statement that shows the binlog filters of a server of that `@@version`. Pure."""
    is_new = "mariadb" not in version.lower() and (
        version_of(version) >= _MYSQL_SAYS_BINARY_LOG_STATUS
    )
    return "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS"


def _filter(name: str, value: str) -> tuple[str, str]:
    """What a filter leaves out, and the fix."""
    if name.startswith("binlog_"):
        omitted = "these" if name == "binlog_ignore_db" else "other"
        return (
            f"{name} is {value}: changes of {omitted} databases are not in the binlog",
            f"remove {name} from the server's option file, restart it, and copy the tables again",
        )
    return (
        f"{name} is {value}: this server's binlog lacks or renames what its source has logged",
        (
            f"follow a server without filters; or remove {name} here and from the server's option "
            "file, rebuild the server from its source and copy the tables again"
        ),
    )


# By both names: MySQL calls replicas slaves until 8.0.26, MariaDB always does.
_SKIP_ERRORS: Final = ("slave_skip_errors", "replica_skip_errors")
_EXEC_MODE: Final = ("slave_exec_mode", "replica_exec_mode")
_LOG_UPDATES: Final = ("log_slave_updates", "log_replica_updates")


def _replication_problems(checked: CheckedServer) -> list[Problem | str]:
    """A replica must apply and log all that its source logs, else its binlog lacks rows."""
    if not checked.account.has("REPLICATION CLIENT"):
        return []  # The missing grant is listed already.
    problems = _filter_problems(checked)
    if checked.is_replica:
        variables = checked.variables(*_SKIP_ERRORS, *_EXEC_MODE, *_LOG_UPDATES)
        faults = variable_faults(variables, checked.way_to_set)
        problems += [checked.problem(what, fix) for what, fix in faults]
    return problems


def variable_faults(
    variables: Mapping[str, str], way: Callable[[str, str], str]
) -> list[tuple[str, str]]:
    """What is wrong with a replica's variables, each with its fix. Pure.

    `way`: how a variable is set on that server.
    """
    faults = []
    skipping = [name for name in _SKIP_ERRORS if variables.get(name, "OFF") not in {"OFF", ""}]
    if skipping:
        what = (
            f"slave_skip_errors is {variables[skipping[0]]}: changes that this replica could not "
            "apply are not in its binlog"
        )
        fix = "remove it (or replica_skip_errors) from the option file, and rebuild the replica"
        faults.append((what, fix))
    lenient = [name for name in _EXEC_MODE if variables.get(name, "").upper() == "IDEMPOTENT"]
    if lenient:
        what = (
            f"{lenient[0]} is IDEMPOTENT: changes of rows that this replica lacks are dropped "
            "without an error and are not in its binlog"
        )
        fix = (
            f"{way(lenient[0], 'STRICT')} and then rebuild the replica, unless it is known to "
            "equal its source"
        )
        faults.append((what, fix))
    if not any(variables.get(name) == "ON" for name in _LOG_UPDATES):
        what = (
            "the server is a replica and does not log what it applies (log_replica_updates is OFF)"
        )
        fix = (
            "start it with --log-replica-updates (--log-slave-updates on older servers and MariaDB)"
        )
        faults.append((what, fix))
    return faults


_SYNC_BINLOG: Final = "sync_binlog"
_FLUSH_LOG: Final = "innodb_flush_log_at_trx_commit"
# 3 on MariaDB flushes twice per commit, as its versions before group commit did.
_DURABLE: Final[Mapping[Flavor, Mapping[str, tuple[str, ...]]]] = {
    Flavor.MYSQL: {_SYNC_BINLOG: ("1",), _FLUSH_LOG: ("1",)},
    Flavor.MARIADB: {_SYNC_BINLOG: ("1",), _FLUSH_LOG: ("1", "3")},
}


def durability_findings(checked: CheckedServer) -> list[Problem | str]:
    """The variables by which a server may lose committed transactions in a crash.

    A replica can fetch again what it loses, until it is promoted.
    """
    # Without the grant, a server that nothing is read from may be a replica.
    is_unknown = not (checked.server.read or checked.account.has("REPLICATION CLIENT"))
    if checked.settings.accept_loss_at_server_crash or is_unknown:
        return []
    durable = _DURABLE[checked.flavor]
    found: list[Problem | str] = []
    for name, value in checked.variables(*durable).items():
        if value in durable[name]:
            continue
        fix = checked.way_to_set(name, "1")
        if checked.is_replica:
            found.append(
                f"{checked.server.name}: {name} is {value} on this replica; once it is promoted, a "
                f"crash of its machine can lose committed transactions, and it will be refused: "
                f"{fix}"
            )
        else:
            what = (
                f"{name} is {value}: a crash of the server's machine can lose committed "
                "transactions, and others then get their GTIDs, which the log would skip"
            )
            found.append(checked.problem(what, f"{fix} or set accept_loss_at_server_crash = true"))
    return found


_NEEDED: Final = {
    Flavor.MYSQL: (
        ("REPLICATION SLAVE", "REPLICATION SLAVE", "the replication stream"),
        ("REPLICATION CLIENT", "REPLICATION CLIENT", "whether the server is a replica"),
    ),
    Flavor.MARIADB: (
        ("REPLICATION SLAVE", "REPLICATION SLAVE", "the replication stream"),
        ("REPLICATION CLIENT", "BINLOG MONITOR", "which binlogs are left (SHOW BINARY LOGS)"),
    ),
}


def _missing_grants(checked: CheckedServer) -> list[Problem | str]:
    return [
        checked.problem(what, fix) for what, fix in missing_grants(checked.account, checked.flavor)
    ]


def missing_grants(account: Account, flavor: Flavor) -> list[tuple[str, str]]:
    """The privileges that the stream needs and the account lacks, each with its fix. Pure."""
    return [
        (
            f"account {account.name} has no {named} privilege, needed for {purpose}",
            f"GRANT {named} ON *.* TO {account.name};",
        )
        for privilege, named, purpose in _NEEDED[flavor]
        if not account.has(privilege)
    ]


MYSQL_VERSION_MIN: Final = (8, 0, 14)  # binlog_row_metadata, and commit times in microseconds
MARIADB_VERSION_MIN: Final = (10, 5, 0)  # binlog_row_metadata
ROW_METADATA: Final = "binlog_row_metadata"
# From here on the SQL layer executes cascades and logs them, unless InnoDB is set to do it.
MYSQL_LOGS_CASCADES: Final = (9, 6, 0)
# The value of a variable that the server does not have.
ABSENT: Final = "UNKNOWN TO THIS SERVER"
# Not more names than fit on a screen.
_TABLES_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A server variable, the values that work, the first of which is asked for, and why."""

    variable: str
    values: tuple[str, ...]
    why: str


_WANTED: Final = (
    _Wanted("binlog_format", ("ROW",), "statements instead of rows would be logged"),
    _Wanted(
        "binlog_row_metadata",
        ("FULL",),
        "without it the binlog has no column names, signs, character sets and keys",
    ),
)
_MYSQL_WANTED: Final = (
    *_WANTED,
    _Wanted("gtid_mode", ("ON",), "the stream is followed by GTIDs"),
    _Wanted(
        "enforce_gtid_consistency",
        ("ON",),
        "a transaction could be logged that has no single GTID",
    ),
)
_MARIADB_WANTED: Final = (
    *_WANTED,
    _Wanted(
        "gtid_strict_mode",
        _ON,
        "sequence numbers could decrease within a domain, and positions would claim too much",
    ),
)


def _version_problems(checked: CheckedServer) -> list[Problem | str]:
    oldest = MYSQL_VERSION_MIN if checked.flavor is Flavor.MYSQL else MARIADB_VERSION_MIN
    if version_of(checked.version) >= oldest:
        return []
    wanted = ".".join(map(str, oldest))
    what = f"version {checked.version} does not log table metadata (binlog_row_metadata)"
    return [checked.problem(what, f"upgrade to {wanted} or later")]


_ONLY_MYSQL: Final = ' (metadata = "proved" is for MySQL alone)'


def _variable_problems(checked: CheckedServer) -> list[Problem | str]:
    wanted = _MYSQL_WANTED if checked.flavor is Flavor.MYSQL else _MARIADB_WANTED
    found = checked.variables(*(item.variable for item in wanted))
    problems: list[Problem | str] = []
    if not checked.has_binlog:
        problems.append(
            checked.problem(
                "log_bin is OFF: there is no binlog to read", checked.way_to_set("log_bin")
            )
        )
    for item in wanted:
        value = found.get(item.variable, ABSENT)
        if value.upper() in item.values:
            continue
        shown, why = value or "''", item.why
        if item.variable == ROW_METADATA:
            if _is_proved(checked, value):
                problems.append(
                    f"{checked.server.name}: {ROW_METADATA} is {value}: accepted, names, keys and "
                    f'labels are asked for in the catalog and proved (metadata = "proved")'
                )
                continue
            if checked.flavor is Flavor.MARIADB and checked.settings.metadata == "proved":
                why += _ONLY_MYSQL
        fix = checked.way_to_set(item.variable, item.values[0])
        problems.append(checked.problem(f"{item.variable} is {shown}: {why}", fix))
    return problems


def _is_proved(checked: CheckedServer, metadata: str) -> bool:
    """Whether rows without names are accepted: MySQL's MINIMAL ones have types and signs."""
    is_minimal = checked.flavor is Flavor.MYSQL and metadata.upper() == "MINIMAL"
    return is_minimal and checked.settings.metadata == "proved"


def _group_problems(checked: CheckedServer) -> list[Problem | str]:
    """A member of a group reports no source, so a secondary looks like a primary."""
    if not any(checked.variables("group_replication_group_name").values()):
        return []
    what = (
        "the server is configured as a member of a group (Group Replication, InnoDB Cluster), and "
        "its role within the group is not followed"
    )
    fix = (
        "follow a server that replicates from the group over a separate channel and is no member; "
        "on a server that has left its group for good: UNINSTALL PLUGIN group_replication;"
    )
    return [checked.problem(what, fix)]


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


def _cascade_problems(checked: CheckedServer) -> list[Problem | str]:
    """Foreign keys whose cascades the server executes without logging them."""
    connection, account, is_replica = checked.connection, checked.account, checked.is_replica
    if checked.settings.accept_unlogged_cascades or logs_cascades(
        connection, is_replica=is_replica
    ):
        return []
    accept = "or set accept_unlogged_cascades = true and accept that such changes are lost"
    if logs_cascades(connection, is_replica=False):
        accept += " (none are, if this replica's source logs them)"
    if not account.has("PROCESS"):
        what = (
            "this server does not log the rows that foreign keys cascade to, and whether there are "
            "such keys is not visible without the PROCESS privilege"
        )
        return [checked.problem(what, f"GRANT PROCESS ON *.* TO {account.name}; {accept}")]
    is_mariadb = checked.flavor is Flavor.MARIADB
    found = cascading_keys(connection, is_mariadb=is_mariadb, limit=_TABLES_SHOWN_MAX)
    return [
        checked.problem(
            f"foreign key {key} (CASCADE or SET NULL) changes table {child} with {parent}, and "
            f"this {'replica' if is_replica else 'server'} does not log such changes by itself",
            f"make the key RESTRICT and such changes explicit, {accept}",
        )
        for key, child, parent in found
    ]


# A producer may be down over a night before someone looks after it.
BINLOG_KEPT_S_MIN: Final = 86_400
# Hosts that synchronize their clocks differ by milliseconds; those that do not, soon by seconds.
_CLOCK_OFF_US_MAX: Final = 500_000


def _clock_warnings(checked: CheckedServer) -> list[Problem | str]:
    asked_us = now_us()
    clock_us = checked.family.moment(checked.connection).clock_us
    ahead_us = clock_ahead_us(asked_us, clock_us, now_us())
    if abs(ahead_us) <= _CLOCK_OFF_US_MAX:
        return []
    text = (
        f"{checked.server.name}: its clock is {abs(ahead_us) / 1_000_000:.1f} s "
        f"{'ahead of' if ahead_us > 0 else 'behind'} this host's, and shards are merged by commit "
        "time: synchronize both (NTP)"
    )
    return [text]


def _binlog_warnings(checked: CheckedServer) -> list[Problem | str]:
    name, warnings = checked.server.name, list[Problem | str]()
    image = checked.variables("binlog_row_image").get("binlog_row_image", "FULL")
    if image != "FULL":
        warnings.append(
            f"{name}: binlog_row_image is {image}: events lack columns, and copies, key ranges and "
            f"reshards stop at such rows: {checked.way_to_set('binlog_row_image', 'FULL')}"
        )
    retention = read_retention(checked.connection, checked.platform)
    if retention.unseen:
        warnings.append(
            f"{name}: for how long binlogs are kept cannot be seen: {retention.unseen}. GRANT "
            f"SELECT ON mysql.rds_configuration TO {checked.account.name}; and look at "
            "CALL mysql.rds_show_configuration;"
        )
    elif retention.kept_s is not None and retention.kept_s < BINLOG_KEPT_S_MIN:
        shown = f"after {retention.kept_s} s" if retention.kept_s else "as soon as possible"
        warnings.append(
            f"{name}: binlogs expire {shown}: a producer that is down for longer cannot continue "
            f"its log; keep them for longer than the longest outage: "
            f"{checked.way_to_set(RETENTION)}"
        )
    return warnings


def _binlog_list_warnings(checked: CheckedServer) -> list[Problem | str]:
    """On MariaDB a producer cannot do without the list, and a missing grant is a problem."""
    is_asked = checked.has_binlog and checked.account.has("REPLICATION CLIENT")
    if checked.flavor is Flavor.MARIADB or not is_asked:
        return []
    files: list[str] = []
    try:
        files = binlog_files(checked.connection)
    except MySQLError as error:
        if error_code(error) not in NOT_SHOWN:
            raise
    if files:
        return []
    text = (
        f"{checked.server.name}: SHOW BINARY LOGS is refused or shows nothing, so the age of the "
        "oldest binlog cannot be seen: `status` does not say for how long the producer may be off, "
        "and a log cannot start at a time"
    )
    return [text]


IDENTITY_PRIVILEGES: Final = ("CREATE", "SELECT", "INSERT")


def identity_grant(account: str) -> str:
    """The statement that lets an account read and write the identity of a shard's servers."""
    return f"GRANT {', '.join(IDENTITY_PRIVILEGES)} ON {INTERNAL_DATABASE}.* TO {account};"


def _identity_warnings(checked: CheckedServer) -> list[Problem | str]:
    account = checked.account
    if checked.flavor is Flavor.MYSQL or not account.has("REPLICATION CLIENT"):
        return []
    needed = {"SELECT"} if checked.is_replica else set(IDENTITY_PRIVILEGES)
    lacking = needed - privileges_on(checked.connection, INTERNAL_DATABASE)
    if not lacking or account.has("ALL PRIVILEGES"):
        return []
    doing = "read" if checked.is_replica else "written"
    text = (
        f"{checked.server.name}: the row that proves to which shard a server belongs cannot be "
        f"{doing}, so another shard's server would be followed: {identity_grant(account.name)}"
    )
    return [text]


def _lag_problems(checked: CheckedServer) -> list[Problem | str]:
    """Whether the account may read the lag that throttles copies."""
    settings, server = checked.settings, checked.server
    is_checked = settings.copy.max_replica_lag_ms is not None and len(settings.servers) > 1
    # Streaming requires the same privilege on MySQL.
    if not is_checked or (server.read and settings.flavor is Flavor.MYSQL):
        return []
    try:
        replica_status(checked.connection, server)
    except StatusNotShown as error:
        what = "copying.max_replica_lag_ms is set, but the account may not read the lag"
        return [checked.problem(what, error.fix)]
    return []


# What would stop the stream or make it wrong: checked at each connection, too.
STREAM_CHECKS: Final[tuple[Check, ...]] = (
    _version_problems,
    _variable_problems,
    _replication_problems,
    _group_problems,
    _missing_grants,
    durability_findings,
    _cascade_problems,
)
# The others of a server that is followed, and those of one that nothing is read from.
OTHER_CHECKS: Final[tuple[Check, ...]] = (
    _lag_problems,
    _clock_warnings,
    _binlog_warnings,
    _binlog_list_warnings,
    _identity_warnings,
)
UNREAD_CHECKS: Final[tuple[Check, ...]] = (
    _lag_problems,
    _clock_warnings,
    _identity_warnings,
)


def stream_findings(checked: CheckedServer) -> list[Problem | str]:
    """What speaks against streaming from a server; only its flavor if that is another one."""
    if checked.flavor is not checked.settings.flavor:
        there, wanted = checked.flavor.value, checked.settings.flavor.value
        what = f"the server is {there} {checked.version}, but the settings say {wanted}"
        return [checked.problem(what, f'set flavor = "{there}" for this shard')]
    return [found for check in STREAM_CHECKS for found in check(checked)]
