"""What a server knows of itself: its version, clock, executed transactions, role and identity."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.errors import ServerRefused
from databases.grants import read_account
from databases.server import DatabaseServer
from databases.sql import named_rows, rows
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import Retry
from event_token.mariadb_gtid import parse_mariadb_gtid

# The oldest binlog may be purged between naming it and asking for its position.
PURGE_RACE_ATTEMPTS: Final = 3
# From here on MySQL says replica instead of slave.
MYSQL_SAYS_REPLICA: Final = (8, 0, 22)
# Members of a replication group have channels of their own, its primary too.
_READ_ONLY_AND_CHANNELS: Final = (
    "SELECT @@GLOBAL.read_only, (SELECT COUNT(*) FROM mysql.slave_master_info "
    "WHERE channel_name NOT LIKE 'group\\_replication\\_%')"
)


# What a server says to an account that may not see the sources that it follows.
_SOURCES_NOT_SHOWN: Final = frozenset(
    {ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR, ER.NO_SUCH_TABLE}
)
# How many sources a MySQL server follows, as many as SHOW REPLICA STATUS has rows: also where the
# performance schema is off. Members of a group have channels of their own, which neither counts.
SOURCES_FOLLOWED: Final = (
    "(SELECT COUNT(*) FROM performance_schema.replication_connection_configuration "
    "WHERE host <> '' AND channel_name NOT LIKE 'group\\_replication\\_%')"
)
# In microseconds, as of the statement's start.
SERVER_CLOCK: Final = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)"
_MYSQL_MOMENT: Final = f"SELECT {SERVER_CLOCK}, @@GLOBAL.gtid_executed"
# What is replicated is logged before it counts as applied, so this order shows none as unlogged.
_MARIADB_EXECUTED: Final = "@@GLOBAL.gtid_slave_pos, @@GLOBAL.gtid_binlog_pos"
_MARIADB_MOMENT: Final = f"SELECT {SERVER_CLOCK}, {_MARIADB_EXECUTED}"
_MARIADB_ROLE: Final = (
    "(SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "
    "WHERE VARIABLE_NAME = 'SLAVES_RUNNING'), @@GLOBAL.gtid_slave_pos, @@GLOBAL.read_only"
)


@dataclass(frozen=True, slots=True)
class ServerMoment:
    """The server's clock and its executed set, read by one statement."""

    clock_us: int
    executed: str


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """What a server has executed, and which part of it no binlog of it contains (`purged`).

    That part was purged from them, or came with the backup that the server was made from. Of
    MariaDB also: `first`, the first number in the binlogs of each domain that the GTID list of the
    oldest one, which is named `oldest`, does not have. A domain of MariaDB that is nowhere here was
    never executed, or was deleted (DELETE_DOMAIN_ID): the server cannot tell.
    """

    executed: GtidSet
    purged: GtidSet
    first: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    oldest: str = ""


def before_binlogs(there: ServerHistory) -> GtidSet:
    """Return the position before all that a server's binlogs have. Pure.

    Who wrote the last number of a domain before its first one there is not known: it counts to the
    writer of that one.
    """
    if not isinstance(there.purged, MariadbGtidSet):
        return there.purged
    found = there.purged.by_domain()
    begun = {d: (writer, n - 1) for d, (writer, n) in there.first.items() if n > 1}
    return MariadbGtidSet.of(found | begun)


def mariadb_executed(applied: str, logged: str, listed: str = "") -> MariadbGtidSet:
    """Return what a MariaDB server has executed, as its last GTIDs. Pure.

    `applied`: its `gtid_slave_pos`, where alone there stands what came with a backup; `logged`: its
    `gtid_binlog_pos`, or another position of its binlogs that is not older; `listed`: the GTID list
    of a binlog, where domains stand for a while that were deleted.
    """
    found: dict[int, tuple[int, int]] = {}
    for position in (listed, applied, logged):
        for domain, last in MariadbGtidSet.parse(position).by_domain().items():
            if domain not in found or found[domain][1] <= last[1]:
                found[domain] = last
    return MariadbGtidSet.of(found)


def mariadb_purged(listed: str, applied: str, state: str) -> MariadbGtidSet:
    """Return what a MariaDB server has executed and no binlog of it has. Pure.

    `listed`: the GTID list of its oldest binlog; `applied`: its `gtid_slave_pos`; `state`: its
    `gtid_binlog_state`. What was applied last, and not logged, came with a backup: also where the
    server has written since.
    """
    last = _last_numbers(state)
    unlogged = {
        domain: (writer, number)
        for domain, (writer, number) in MariadbGtidSet.parse(applied).by_domain().items()
        if last.get((domain, writer), 0) < number
    }
    return mariadb_executed(listed, str(MariadbGtidSet.of(unlogged)))


def _last_numbers(state: str) -> dict[tuple[int, int], int]:
    """Return the last number in a `gtid_binlog_state` by domain and server. Pure."""
    gtids = [parse_mariadb_gtid(part) for part in state.split(",") if part]
    return {(domain, server): number for domain, server, number in gtids}


def binlog_files(connection: Any) -> list[str]:
    """The names of a server's binlog files, oldest first."""
    return [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]


class MysqlFacts:
    """MySQL 8.0 and later."""

    flavor = Flavor.MYSQL

    def __init__(self) -> None:
        """Take the account for one that may see the sources, until the server refuses it."""
        self._sees_sources = True

    def moment(self, connection: Any) -> ServerMoment:
        """Clock, as of the statement's start, and executed set, which is read after it."""
        [(clock_us, executed)] = rows(connection, _MYSQL_MOMENT)
        return ServerMoment(int(clock_us), _one_line(executed))

    def moment_and_role(self, connection: Any) -> tuple[ServerMoment, bool]:
        """`moment` and `is_replica`, which is read no earlier than the clock.

        By one statement where the account may see the sources: SHOW REPLICA STATUS describes 60
        columns each time, which costs the client three times as much as all the rest.
        """
        if self._sees_sources:
            try:
                [(clock_us, executed, sources)] = rows(
                    connection, f"{_MYSQL_MOMENT}, {SOURCES_FOLLOWED}"
                )
            except MySQLError as error:
                if error_code(error) not in _SOURCES_NOT_SHOWN:
                    raise
                self._sees_sources = False
            else:
                return ServerMoment(int(clock_us), _one_line(executed)), sources > 0
        return self.moment(connection), self.is_replica(connection)

    def history(self, connection: Any) -> ServerHistory:
        """Executed and purged sets. One statement: a purge between two would look like a loss."""
        [(executed, purged)] = rows(
            connection, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged"
        )
        return ServerHistory(MysqlGtidSet.parse(executed), MysqlGtidSet.parse(purged))

    def before_file(self, connection: Any, name: str) -> GtidSet:
        """All that was logged, here or in binlogs that are gone, before this file began."""
        found = rows(connection, "SHOW BINLOG EVENTS IN %s LIMIT 2", (name,))
        texts = [str(row[5]) for row in found if row[2] == "Previous_gtids"]
        if len(texts) != 1:
            message = f"binlog {name} does not begin with the GTIDs before it"
            raise Retry(message)
        return MysqlGtidSet.parse(_one_line(texts[0]))

    def is_replica(self, connection: Any) -> bool:
        """Whether the server applies another one's changes, now or once it is started again."""
        [(version,)] = rows(connection, "SELECT @@version")
        return bool(rows(connection, replica_status_statement(version)))

    def takes_writes(self, connection: Any) -> bool:
        """Whether the server is a primary that applications may write to: no replica, writable.

        SHOW REPLICA STATUS would need one more grant than SELECT.
        """
        [(read_only, channels)] = rows(connection, _READ_ONLY_AND_CHANNELS)
        return not is_on(read_only) and not channels

    def own_name(self, connection: Any) -> str:
        """The server's own identifier in the GTIDs of transactions it commits."""
        return str(rows(connection, "SELECT @@server_uuid")[0][0])

    def binlog_state(self, connection: Any) -> dict[tuple[int, int], int]:
        """MariaDB: the last number in the binlogs by domain and server. MySQL: empty."""
        del connection
        return {}


class MariadbFacts:
    """MariaDB 10.5 and later."""

    flavor = Flavor.MARIADB

    def moment(self, connection: Any) -> ServerMoment:
        """See MysqlFacts."""
        [(clock_us, *executed)] = rows(connection, _MARIADB_MOMENT)
        return ServerMoment(int(clock_us), str(mariadb_executed(*executed)))

    def moment_and_role(self, connection: Any) -> tuple[ServerMoment, bool]:
        """See MysqlFacts."""
        [(clock_us, applied, logged, *role)] = rows(
            connection, f"{_MARIADB_MOMENT}, {_MARIADB_ROLE}"
        )
        moment = ServerMoment(int(clock_us), str(mariadb_executed(applied, logged)))
        return moment, _follows(*role)

    def history(self, connection: Any) -> ServerHistory:
        """See MysqlFacts. The GTID list of the oldest binlog has what was purged before it.

        It lacks what came with a backup, of which `first` tells, once it is added.
        """
        for _ in range(PURGE_RACE_ATTEMPTS):
            oldest = binlog_files(connection)[0]
            [(listed, applied, logged, state)] = rows(
                connection,
                f"SELECT BINLOG_GTID_POS(%s, 4), {_MARIADB_EXECUTED}, @@GLOBAL.gtid_binlog_state",
                (oldest,),
            )
            if listed is not None:
                executed = mariadb_executed(applied, logged, listed)
                known = MariadbGtidSet.of_server(str(executed), state, applied)
                purged = mariadb_purged(listed, applied, state)
                return ServerHistory(known, purged, oldest=oldest)
        message = f"binlogs are purged faster than they can be named (the oldest was {oldest})"
        raise Retry(message)

    def before_file(self, connection: Any, name: str) -> GtidSet:
        """See MysqlFacts. The file's GTID list says it."""
        [(before,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, 4)", (name,))
        if before is None:
            message = f"binlog {name} was purged while it was looked at"
            raise Retry(message)
        return MariadbGtidSet.parse(before)

    def is_replica(self, connection: Any) -> bool:
        """See MysqlFacts. SHOW REPLICA STATUS would need one more grant.

        Where replication is stopped, what it has applied and `read_only` tell.
        """
        [role] = rows(connection, f"SELECT {_MARIADB_ROLE}")
        return _follows(*role)

    def takes_writes(self, connection: Any) -> bool:
        """See MysqlFacts."""
        [(read_only,)] = rows(connection, "SELECT @@GLOBAL.read_only")
        return not is_on(read_only) and not self.is_replica(connection)

    def own_name(self, connection: Any) -> str:
        """See MysqlFacts."""
        return str(rows(connection, "SELECT @@server_id")[0][0])

    def binlog_state(self, connection: Any) -> dict[tuple[int, int], int]:
        """See MysqlFacts."""
        [(state,)] = rows(connection, "SELECT @@GLOBAL.gtid_binlog_state")
        return _last_numbers(str(state))


# What can be asked of a server of either family.
ServerFacts = MysqlFacts | MariadbFacts


def facts_of(flavor: Flavor) -> ServerFacts:
    """How a server of that family is asked."""
    match Flavor(flavor):
        case Flavor.MYSQL:
            return MysqlFacts()
        case Flavor.MARIADB:
            return MariadbFacts()


def replica_status_statement(version: str) -> str:
    """How a server of that `@@version` is asked for the sources that it follows. Pure."""
    if "mariadb" in version.lower():
        return "SHOW ALL SLAVES STATUS"
    is_new = version_of(version) >= MYSQL_SAYS_REPLICA
    return "SHOW REPLICA STATUS" if is_new else "SHOW SLAVE STATUS"


def is_on(read_only: object) -> bool:
    """What @@read_only says: 0 or 1; a word since MariaDB 12 (OFF, ON, NO_LOCK, ...). Pure."""
    return str(read_only).upper() not in {"0", "OFF"}


def version_of(text: str) -> tuple[int, int, int]:
    """`8.0.36-log` as (8, 0, 36); MariaDB's `5.5.5-10.5.1-MariaDB` as (10, 5, 1)."""
    numbers = text.removeprefix("5.5.5-").split("-")[0].split(".")
    major, minor, patch = (int(n) for n in (*numbers, "0", "0")[:3])
    return major, minor, patch


def _follows(running: object, applied: object, read_only: object) -> bool:
    """What the values of _MARIADB_ROLE say."""
    return int(str(running)) > 0 or (bool(applied) and is_on(read_only))


def _one_line(gtid_set: str) -> str:
    # MySQL prints a line break after each comma.
    return gtid_set.replace("\n", "")


# MariaDB's own privilege for it; before that the account must be able to stop replication too.
_REPLICA_MONITOR_FROM: Final = (10, 5, 9)


def status_privilege(version: str) -> str:
    """The privilege that shows an account how a server of that `@@version` replicates. Pure."""
    if "mariadb" not in version.lower():
        return "REPLICATION CLIENT"
    monitors = version_of(version) >= _REPLICA_MONITOR_FROM
    return "REPLICA MONITOR" if monitors else "REPLICATION SLAVE ADMIN"


class StatusNotShown(ServerRefused):
    """Raised when an account may not ask how a server replicates; `fix` is the GRANT."""

    def __init__(self, name: str, text: str, fix: str) -> None:
        self.fix = fix
        super().__init__(f"{name} does not say how it replicates: {text}. Fix: {fix}")


def replica_status(connection: Any, server: DatabaseServer) -> list[dict[str, Any]]:
    """One row per source that the server follows. StatusNotShown without the privilege."""
    [(text,)] = rows(connection, "SELECT @@version")
    try:
        return named_rows(connection, replica_status_statement(text))
    except MySQLError as error:
        if error_code(error) != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        fix = f"GRANT {status_privilege(text)} ON *.* TO {read_account(connection).name};"
        raise StatusNotShown(server.name, str(error.args[1]), fix) from error


# Reported beside the filters, and harmless with these values (in upper case).
_HARMLESS: Final = {
    "replicate_annotate_row_events": ("ON", "OFF"),
    "replicate_events_marked_for_skip": ("REPLICATE",),
}
_IGNORED_TABLES: Final = ("replicate_ignore_table", "replicate_wild_ignore_table")
# Hosted servers keep their state in tables of this schema, and do not replicate those.
_SYSTEM_TABLES: Final = "mysql."


def filters_in(state: Mapping[str, Any]) -> dict[str, str]:
    """The filters among a server's status fields, by their names in lower case. Pure."""
    found = {}
    for key, value in state.items():
        name, text = key.lower(), str(value or "").strip()
        if not name.startswith(("replicate_", "binlog_do_db", "binlog_ignore_db")):
            continue
        if text and not _is_harmless(name, text):
            found[name] = text
    return found


def _is_harmless(name: str, text: str) -> bool:
    if name in _IGNORED_TABLES:
        return all(table.strip().startswith(_SYSTEM_TABLES) for table in text.split(","))
    return text.upper() in _HARMLESS.get(name, ())


START_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
# Within a snapshot it shows the snapshot's own place, to any account. Another session's SHOW STATUS
# can change what this one shows, so it is asked before and after the read.
SHOW_PLACE: Final = "SHOW STATUS LIKE 'binlog_snapshot_%'"

# File and offset of a binlog.
Place = tuple[str, int]


def snapshot_place(found: Iterable[tuple[Any, ...]]) -> Place:
    """The place in the rows of SHOW_PLACE; ("", 0) on a server without a binlog. Pure."""
    values = {str(name).lower(): value for name, value in found}
    return (
        str(values.get("binlog_snapshot_file", "")),
        int(values.get("binlog_snapshot_position", 0)),
    )
