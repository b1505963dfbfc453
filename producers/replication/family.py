"""How the replication stream of MySQL and of MariaDB is started."""

from typing import Any, Final, Protocol

from databases.server_facts import MariadbFacts, MysqlFacts, ServerFacts
from event_token import Flavor, GtidSet, MariadbGtidSet, MysqlGtidSet
from event_token.errors import UsageError
from producers.replication.dump_command import mariadb_dump_command, mysql_dump_command

# The server sends a heartbeat at least this often, so that silence means that it is gone.
STREAM_HEARTBEAT_S: Final = 10
# While Kafka is away nothing is read. The server keeps the connection for as long as a Kafka
# transaction may last (15 min is the usual maximum of brokers).
NET_WRITE_TIMEOUT_S: Final = 900
_NANOSECONDS: Final = 1_000_000_000

Statement = tuple[str, tuple[Any, ...]]


class ServerFamily(ServerFacts, Protocol):
    """What differs between MySQL and MariaDB."""

    def session(self, position: GtidSet | None, identity: str) -> list[Statement]:
        """Statements that precede a dump after `position`, or of a file if that is None.

        `identity`: a UUID that no other replica has.
        """
        ...

    def dump_command(self, server_id: int, position: GtidSet) -> bytes:
        """The command (without its packet header) that starts the stream after `position`."""
        ...


class MysqlFamily(MysqlFacts):
    """MySQL 8.0 and later."""

    def session(self, position: GtidSet | None, identity: str) -> list[Statement]:
        """See ServerFamily. Both names of each variable: before 8.0.26 only the older one works."""
        del position
        period_ns = STREAM_HEARTBEAT_S * _NANOSECONDS
        return [
            ("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
            ("SET @source_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
            ("SET @master_heartbeat_period = %s, @source_heartbeat_period = %s", (period_ns,) * 2),
            ("SET @slave_uuid = %s, @replica_uuid = %s", (identity,) * 2),
            ("SET SESSION net_write_timeout = %s", (NET_WRITE_TIMEOUT_S,)),
        ]

    def dump_command(self, server_id: int, position: GtidSet) -> bytes:
        """See ServerFamily."""
        if not isinstance(position, MysqlGtidSet):
            raise UsageError(f"position '{position}' is not MySQL's")
        return mysql_dump_command(server_id, position)


class MariadbFamily(MariadbFacts):
    """MariaDB 10.5 and later."""

    def session(self, position: GtidSet | None, identity: str) -> list[Statement]:
        """See ServerFamily. Capability 4: the stream carries GTID events."""
        del identity
        period_ns = STREAM_HEARTBEAT_S * _NANOSECONDS
        statements: list[Statement] = [
            ("SET @master_binlog_checksum = @@GLOBAL.binlog_checksum", ()),
            ("SET @master_heartbeat_period = %s", (period_ns,)),
            ("SET @mariadb_slave_capability = 4", ()),
            ("SET SESSION net_write_timeout = %s", (NET_WRITE_TIMEOUT_S,)),
        ]
        if position is not None:
            statements += [
                ("SET @slave_connect_state = %s", (_connect_state(position),)),
                ("SET @slave_gtid_strict_mode = 1", ()),
                ("SET @slave_gtid_ignore_duplicates = 0", ()),
            ]
        return statements

    def dump_command(self, server_id: int, position: GtidSet) -> bytes:
        """See ServerFamily. The position stands in the session."""
        del position
        return mariadb_dump_command(server_id)


def _connect_state(position: GtidSet) -> str:
    if not isinstance(position, MariadbGtidSet):
        raise UsageError(f"position '{position}' is not MariaDB's")
    return position.last_gtids()


def family_of(flavor: Flavor) -> ServerFamily:
    """The family's statements."""
    match Flavor(flavor):
        case Flavor.MYSQL:
            return MysqlFamily()
        case Flavor.MARIADB:
            return MariadbFamily()
