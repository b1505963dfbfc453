"""Database servers that behave as those of managed services, as their documentation says.

The servers are real. What a service's server says of itself and a plain one does not comes from a
proxy on loopback, which rewrites the questions of clients.
"""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from databases.server import Platform
from databases.sql import rows
from event_token import Flavor
from producers.settings import ServerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.servers.proxy import VirtualAddress
from tests.producers.servers.replication import purge_to, statements
from tests.producers.session.producing import server_of

_HEADER_BYTES: Final = 4
_COM_QUERY: Final = 3
# A client that asks for TLS sends a login without its names first; what follows is not read.
_TLS_REQUEST_BYTES: Final = 32
_SHOW_VARIABLES: Final = "SHOW GLOBAL VARIABLES WHERE "
_METADATA: Final = "binlog_row_metadata"
_LOG_BIN: Final = "SELECT @@GLOBAL.log_bin"
# What statements get that are not for accounts of the service's users: an error, or no rows.
REFUSAL: Final = (
    "SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = 1227, MESSAGE_TEXT = 'Access denied; you need (at "
    "least one of) the SUPER privilege(s) for this operation'"
)
NOTHING: Final = "SELECT 1 FROM DUAL WHERE FALSE"
# Much more often than a service, which writes every few minutes.
_BOOKKEEPING_S: Final = 0.05


@dataclass(frozen=True)
class Service:
    """A service. `variables`: what its servers say instead of a plain one's, or beside them.

    `hidden`: beginnings of statements that get `answer` instead. `tables`, `bookkeeping`: the
    service's own tables, and what it writes to them as statements.
    """

    profile: str
    platform: Platform
    flavor: Flavor = Flavor.MYSQL
    variables: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    answer: str = REFUSAL
    tables: tuple[str, ...] = ()
    bookkeeping: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.profile

    @property
    def metadata(self) -> str:
        """How a producer's settings say where names of columns come from."""
        return "proved" if self.variables.get(_METADATA) == "MINIMAL" else "logged"

    def saying(self, **variables: str) -> "Service":
        """The service with other variables."""
        return replace(self, variables={**self.variables, **variables})


# The procedure is the service's; a retention of NULL keeps nothing.
_RDS_TABLES: Final = (
    (
        "CREATE TABLE mysql.rds_configuration (name VARCHAR(100) PRIMARY KEY, value VARCHAR(100), "
        "description VARCHAR(300))"
    ),
    "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', NULL, '')",
    (
        "CREATE PROCEDURE mysql.rds_set_configuration(IN what VARCHAR(100), IN new_value INT) "
        "UPDATE mysql.rds_configuration SET value = new_value WHERE name = what"
    ),
    "CREATE TABLE mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)",
    "CREATE TABLE mysql.rds_sysinfo (name VARCHAR(25), value VARCHAR(50))",
)
_RDS_BOOKKEEPING: Final = (
    (
        "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,1483041015005) ON DUPLICATE KEY "
        "UPDATE value = 1483041015005"
    ),
    "DELETE FROM mysql.rds_sysinfo where name = 'innodb_txn_key'",
    "INSERT INTO mysql.rds_sysinfo(name, value) values ('innodb_txn_key', 'Wed Dec 14 2022')",
)
RDS_MYSQL: Final = Service(
    "rds-mysql",
    Platform.RDS,
    variables={"basedir": "/rdsdbbin/mysql-8.0.35.R2/"},
    tables=_RDS_TABLES,
    bookkeeping=_RDS_BOOKKEEPING,
)
AURORA_MYSQL: Final = Service(
    "aurora-mysql",
    Platform.AURORA,
    variables={
        "basedir": "/rdsdbbin/oscar-8.0.mysql_aurora.3.8.0.0/",
        "aurora_version": "3.08.0",
    },
    tables=_RDS_TABLES,
    bookkeeping=_RDS_BOOKKEEPING,
)
RDS_MARIADB: Final = replace(
    RDS_MYSQL,
    profile="rds-mariadb",
    flavor=Flavor.MARIADB,
    variables={"basedir": "/rdsdbbin/mariadb-10.11.6.R1/"},
)
CLOUD_SQL: Final = Service(
    "cloudsql",
    Platform.CLOUD_SQL,
    variables={"version_comment": "(Google)", "cloudsql_iam_authentication": "ON"},
)
AZURE_MYSQL: Final = Service(
    "azure-mysql",
    Platform.AZURE,
    variables={
        "azure_server_name": "shop",
        "version_comment": "Source distribution",
        _METADATA: "MINIMAL",
        "binlog_expire_logs_seconds": "0",
    },
    hidden=("SHOW BINARY LOGS", "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"),
)


class ServiceAddress(VirtualAddress):
    """The address of a service: an endpoint that moves, whose servers say what the service's do."""

    def __init__(self, database: DatabaseFixture, service: Service) -> None:
        self._service = service
        self.queries: list[str] = []
        super().__init__(database)

    def to_server(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on each packet of a client, its questions rewritten."""
        with suppress(OSError):
            while head := _exactly(client, _HEADER_BYTES):
                body = _exactly(client, int.from_bytes(head[:3], "little"))
                # Commands begin with sequence number 0; the packets of a login do not.
                if head[3] == 0 and body[:1] == bytes([_COM_QUERY]):
                    query = body[1:].decode()
                    self.queries.append(query)
                    body = body[:1] + self.asked(query).encode()
                server.sendall(len(body).to_bytes(3, "little") + head[3:] + body)
                if head[3] == 1 and len(body) == _TLS_REQUEST_BYTES:
                    super().to_server(client, server)
        for each in (client, server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def asked(self, query: str) -> str:
        """What the server is asked instead. Pure."""
        service = self._service
        if query.startswith(service.hidden or "\0"):
            return service.answer
        if query == _LOG_BIN and "log_bin" in service.variables:
            return f"SELECT '{service.variables['log_bin']}'"
        if query.startswith(_SHOW_VARIABLES):
            schema = (
                "information_schema" if service.flavor is Flavor.MARIADB else "performance_schema"
            )
            own = " UNION ALL ".join(
                f"SELECT '{name}', '{value}'" for name, value in service.variables.items()
            )
            names = ", ".join(f"'{name}'" for name in service.variables)
            return (
                "SELECT * FROM (SELECT LOWER(variable_name) AS Variable_name, variable_value AS "
                f"Value FROM {schema}.global_variables WHERE variable_name NOT IN ({names}) "
                f"UNION ALL {own}) AS shown WHERE {query.removeprefix(_SHOW_VARIABLES)}"
            )
        return query


def _exactly(source: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = source.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return parts


@contextmanager
def served(database: DatabaseFixture, service: Service) -> Iterator[ServiceAddress]:
    """The address of a service that has this server."""
    address = ServiceAddress(database, service)
    try:
        yield address
    finally:
        address.close()


def behind(address: ServiceAddress, database: DatabaseFixture) -> DatabaseFixture:
    """The server as its clients see it; root goes around the address."""
    found = DatabaseFixture(database.server)
    found.port = address.port
    return found


def at(address: ServiceAddress, database: DatabaseFixture) -> ServerSettings:
    """The server behind an address, with the account that the documentation asks for."""
    return server_of(behind(address, database))


def make_tables(database: DatabaseFixture, service: Service) -> None:
    """Create the service's own tables, and log names as its servers do from the beginning."""
    logged = service.variables.get(_METADATA)
    if logged is not None:
        statements(database, f"SET GLOBAL {_METADATA} = {logged}")
    statements(database, "SET SESSION sql_log_bin = 0", *service.tables)


def purge_as_rds(database: DatabaseFixture) -> None:
    """Delete the binlogs that RDS would delete by now."""
    with database.connect() as connection:
        [(hours,)] = rows(connection, "SELECT value FROM mysql.rds_configuration")
        rows(connection, "FLUSH BINARY LOGS")
        newest = str(rows(connection, "SHOW BINARY LOGS")[-1][0])
        if hours is not None:
            rows(connection, f"PURGE BINARY LOGS BEFORE NOW() - INTERVAL {hours} HOUR")
            return
    purge_to(database, newest)


@contextmanager
def bookkeeping(database: DatabaseFixture, service: Service) -> Iterator[None]:
    """What the service writes as statements, whatever binlog_format says, as long as it is used."""
    ending = threading.Event()

    def write() -> None:
        with database.connect() as connection:
            rows(connection, "SET SESSION binlog_format = STATEMENT")
            while not ending.wait(_BOOKKEEPING_S):
                for statement in service.bookkeeping:
                    rows(connection, statement)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        ending.set()
        writer.join()
