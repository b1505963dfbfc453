"""What a server knows of itself: its version, clock, executed transactions, role and identity."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

from databases.sql import rows
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


@dataclass(frozen=True, slots=True)
class ServerMoment:
    """The server's clock and its executed set, read by one statement."""

    clock_us: int
    executed: str


@dataclass(frozen=True, slots=True)
class ServerHistory:
    """What a server has executed, and which part its binlogs no longer contain."""

    executed: GtidSet
    purged: GtidSet


class ServerFacts(Protocol):
    """What can be asked of a server of either family."""

    flavor: Flavor

    def moment(self, connection: Any) -> ServerMoment:
        """Clock and executed set."""
        ...

    def history(self, connection: Any) -> ServerHistory:
        """Executed and purged sets."""
        ...

    def before_file(self, connection: Any, name: str) -> GtidSet:
        """All that was logged, here or in binlogs that are gone, before this file began."""
        ...

    def is_replica(self, connection: Any) -> bool:
        """Whether the server applies another one's changes, now or when it is told to go on."""
        ...

    def takes_writes(self, connection: Any) -> bool:
        """Whether the server is a primary that applications may write to: no replica, writable."""
        ...

    def own_name(self, connection: Any) -> str:
        """The server's own identifier in the GTIDs of transactions it commits."""
        ...

    def binlog_state(self, connection: Any) -> dict[tuple[int, int], int]:
        """MariaDB: the last number in the binlogs by domain and server. MySQL: empty."""
        ...


class MysqlFacts:
    """MySQL 8.0 and later."""

    flavor = Flavor.MYSQL

    def moment(self, connection: Any) -> ServerMoment:
        """See ServerFacts. The clock is taken at the statement's start, before the set is read."""
        [(clock_us, executed)] = rows(
            connection,
            "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED), @@GLOBAL.gtid_executed",
        )
        return ServerMoment(int(clock_us), _one_line(executed))

    def history(self, connection: Any) -> ServerHistory:
        """See ServerFacts. One statement: a purge between two would look like a loss."""
        [(executed, purged)] = rows(
            connection, "SELECT @@GLOBAL.gtid_executed, @@GLOBAL.gtid_purged"
        )
        return ServerHistory(MysqlGtidSet.parse(executed), MysqlGtidSet.parse(purged))

    def before_file(self, connection: Any, name: str) -> GtidSet:
        """See ServerFacts. The file's second event says it."""
        found = rows(connection, "SHOW BINLOG EVENTS IN %s LIMIT 2", (name,))
        texts = [str(row[5]) for row in found if row[2] == "Previous_gtids"]
        if len(texts) != 1:
            message = f"binlog {name} does not begin with the GTIDs before it"
            raise Retry(message)
        return MysqlGtidSet.parse(_one_line(texts[0]))

    def is_replica(self, connection: Any) -> bool:
        """See ServerFacts."""
        [(version,)] = rows(connection, "SELECT @@version")
        return bool(rows(connection, replica_status_statement(version)))

    def takes_writes(self, connection: Any) -> bool:
        """See ServerFacts. SHOW REPLICA STATUS would need one more grant than SELECT."""
        [(read_only, channels)] = rows(connection, _READ_ONLY_AND_CHANNELS)
        return not is_on(read_only) and not channels

    def own_name(self, connection: Any) -> str:
        """See ServerFacts."""
        return str(rows(connection, "SELECT @@server_uuid")[0][0])

    def binlog_state(self, connection: Any) -> dict[tuple[int, int], int]:
        """See ServerFacts."""
        del connection
        return {}


class MariadbFacts:
    """MariaDB 10.5 and later."""

    flavor = Flavor.MARIADB

    def moment(self, connection: Any) -> ServerMoment:
        """See ServerFacts."""
        [(clock_us, executed)] = rows(
            connection,
            "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED), @@GLOBAL.gtid_binlog_pos",
        )
        return ServerMoment(int(clock_us), _one_line(executed))

    def history(self, connection: Any) -> ServerHistory:
        """See ServerFacts. What is purged is what stood before the oldest binlog's first event."""
        for _ in range(PURGE_RACE_ATTEMPTS):
            oldest = rows(connection, "SHOW BINARY LOGS")[0][0]
            [(purged, executed, *known)] = rows(
                connection,
                "SELECT BINLOG_GTID_POS(%s, 4), @@GLOBAL.gtid_binlog_pos, "
                "@@GLOBAL.gtid_binlog_state, @@GLOBAL.gtid_slave_pos",
                (oldest,),
            )
            if purged is not None:
                position = MariadbGtidSet.of_server(executed, *known)
                return ServerHistory(position, MariadbGtidSet.parse(purged))
        message = f"binlogs are purged faster than they can be named (the oldest was {oldest})"
        raise Retry(message)

    def before_file(self, connection: Any, name: str) -> GtidSet:
        """See ServerFacts. The file's GTID list says it."""
        [(before,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, 4)", (name,))
        if before is None:
            message = f"binlog {name} was purged while it was looked at"
            raise Retry(message)
        return MariadbGtidSet.parse(before)

    def is_replica(self, connection: Any) -> bool:
        """See ServerFacts. SHOW REPLICA STATUS would need one more grant.

        Where replication is stopped, what it has applied and `read_only` tell.
        """
        if int(rows(connection, "SHOW GLOBAL STATUS LIKE 'Slaves_running'")[0][1]) > 0:
            return True
        [(applied, read_only)] = rows(connection, "SELECT @@GLOBAL.gtid_slave_pos, @@read_only")
        return bool(applied) and is_on(read_only)

    def takes_writes(self, connection: Any) -> bool:
        """See ServerFacts."""
        [(read_only,)] = rows(connection, "SELECT @@GLOBAL.read_only")
        return not is_on(read_only) and not self.is_replica(connection)

    def own_name(self, connection: Any) -> str:
        """See ServerFacts."""
        return str(rows(connection, "SELECT @@server_id")[0][0])

    def binlog_state(self, connection: Any) -> dict[tuple[int, int], int]:
        """See ServerFacts."""
        [(state,)] = rows(connection, "SELECT @@GLOBAL.gtid_binlog_state")
        gtids = [parse_mariadb_gtid(part) for part in str(state).split(",") if part]
        return {(domain, server): number for domain, server, number in gtids}


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


def _one_line(gtid_set: str) -> str:
    # MySQL prints a line break after each comma.
    return gtid_set.replace("\n", "")
