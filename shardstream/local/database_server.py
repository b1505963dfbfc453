"""A real MySQL or MariaDB server on loopback, in its own folder."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from event_token import Flavor, Halt
from shardstream.local.database_binaries import (
    DatabaseBinaries,
    as_root_arguments,
    find_mariadb,
    find_mysql,
    initialise_mariadb,
    initialise_mysql,
)
from shardstream.local.fetching import Report, cached
from shardstream.local.local_server import HOST, PORT_TAKEN, LocalServer, ServerOptions, answers
from shardstream.local.processes import STOP_S_MAX

# sun_path of a Unix socket is 108 bytes with its final zero.
SOCKET_PATH_MAX = 107
ROOT_USER = "root"
# A server that starts on a busy machine may take a connection and answer late: it is asked again.
ANSWER_S_MAX = 5.0

# Exactly what a producer needs. PROCESS shows the foreign keys whose cascades no binlog has.
GRANTS = "REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, SELECT"
# A replica's filters, which MySQL shows to REPLICATION CLIENT.
MARIADB_GRANTS = f"{GRANTS}, REPLICA MONITOR"
# The row that distinguishes a shard's MariaDB servers from others.
MARIADB_IDENTITY_GRANTS = "CREATE, INSERT"

COMMON_ARGUMENTS = (
    f"--bind-address={HOST}",
    "--skip-name-resolve",
    "--secure-file-priv=",
    # Several servers share one machine.
    "--innodb-buffer-pool-size=64M",
    # All processes share fs.aio-max-nr requests, of which 4 and 4 threads take 3.5 %.
    "--innodb-read-io-threads=2",
    "--innodb-write-io-threads=2",
    "--max-connections=200",
)
# What producers require, so that a crash of the machine loses no committed transaction.
DURABLE = ("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
MYSQL_ARGUMENTS = (
    "--mysqlx=OFF",
    "--gtid-mode=ON",
    "--enforce-gtid-consistency=ON",
    "--binlog-row-metadata=FULL",
    *DURABLE,
)
MARIADB_ARGUMENTS = (
    "--log-bin=binlog",
    "--log-slave-updates=ON",
    "--binlog-format=ROW",
    "--binlog-row-metadata=FULL",
    "--gtid-strict-mode=ON",
    "--gtid-domain-id=0",
    # Otherwise each start first creates an RSA key of 4,096 bits: 4 s, a minute on a busy machine.
    "--skip-ssl",
    *DURABLE,
)
# For data that nobody keeps: nothing waits for the disk. Writes survive a killed server, but not a
# killed machine.
NOT_DURABLE = (
    "--innodb-flush-log-at-trx-commit=2",
    "--sync-binlog=0",
    "--innodb-flush-method=nosync",
)

DatabaseConnection: TypeAlias = "Connection[Cursor]"


@dataclass(frozen=True, slots=True)
class LocalAccount:
    """A database account."""

    user: str
    password: str


class LocalDatabase(LocalServer):
    """One server; `start()` also creates its data folder and its replication account."""

    # A start takes 1-3 s, or 60 s beside ten others; a server that dies is noticed at once.
    ready_s_max = 300.0
    ready_poll_s = 0.1
    flavor: Flavor
    # The settings that only this family has, where its binaries are, and how a data folder is
    # created at first.
    family_arguments: Sequence[str]
    find: Callable[[Report], DatabaseBinaries]
    initialise: Callable[[DatabaseBinaries, Path], None]

    def __init__(
        self,
        folder: Path,
        *,
        server_id: int,
        account: LocalAccount,
        **options: Unpack[ServerOptions],
    ) -> None:
        """Start nothing yet."""
        self.kind = self.flavor.value
        super().__init__(folder, **options)
        self.server_id = server_id
        self.root_user = ROOT_USER
        self.user = account.user
        self.password = account.password

    @property
    def socket_path(self) -> Path:
        """The Unix socket; outside the folder if its path would be too long."""
        beside = self.folder / "server.sock"
        if len(str(beside).encode()) <= SOCKET_PATH_MAX:
            return beside
        digest = hashlib.sha256(str(beside).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"shardstream-{digest}.sock"

    @property
    def datadir(self) -> Path:
        """The data folder, which also holds the binlogs."""
        return self.folder / "data"

    def binaries(self) -> DatabaseBinaries:
        """Return the family's binaries.

        Raises UsageError if they are not available here, Halt if fetching fails.
        """
        return self.find(self._report)

    def launch(self) -> None:
        """Start without waiting, so that servers start in parallel; `finish_start` follows."""
        binaries = self.binaries()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.datadir.exists():
            self._make_datadir(binaries)
        self._choose_ports(1)
        self._remove_socket()
        # A starting MariaDB deletes the temporary tables in its folder, in /tmp other servers' too.
        scratch = self.folder / "tmp"
        scratch.mkdir(exist_ok=True)
        self._report(f"starting {self.name} {binaries.version}")
        self._process.launch(
            [
                *binaries.server,
                *as_root_arguments(),
                f"--datadir={self.datadir}",
                f"--tmpdir={scratch}",
                f"--socket={self.socket_path}",
                f"--pid-file={self.folder}/mysqld.pid",
                f"--port={self.port}",
                f"--server-id={self.server_id}",
                *COMMON_ARGUMENTS,
                *self.family_arguments,
                *self.extra_args,
            ]
        )

    def wait_ready(self) -> None:
        """Wait until the server answers, then create the replication account. Raises Halt."""
        super().wait_ready()
        self._make_account()

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        """Shut down cleanly and wait; kill after `timeout_s` seconds."""
        super().stop(timeout_s)
        self._remove_socket()

    def kill(self) -> None:
        """Kill without warning and wait."""
        super().kill()
        self._remove_socket()

    def connect(self, **arguments: Any) -> DatabaseConnection:
        """Connect as root with autocommit; `arguments` are PyMySQL's and take precedence."""
        chosen: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.root_user,
            "autocommit": True,
            "charset": "utf8mb4",
            # This is loopback, and each TLS context reads all of the system's certificates again.
            "ssl_disabled": not any(name.startswith("ssl") for name in arguments),
            **arguments,
        }
        return pymysql.connect(**chosen)

    def _remove_socket(self) -> None:
        """Remove a killed server's socket and its lock, whose pid may be reused by now."""
        if self.pid is None:
            self.socket_path.unlink(missing_ok=True)
            Path(f"{self.socket_path}.lock").unlink(missing_ok=True)

    def _make_datadir(self, binaries: DatabaseBinaries) -> None:
        def make(folder: Path) -> None:
            self._report(f"initialising {binaries.flavor} {binaries.version}")
            self.initialise(binaries, folder / "data")

        template = cached(binaries.template_name, make, report=self._report)
        # The rename makes it complete or absent, like a cache entry.
        copying = self.folder / ".copying"
        if copying.exists():
            shutil.rmtree(copying)
        shutil.copytree(template / "data", copying)
        copying.rename(self.datadir)

    def serves(self) -> bool:
        """Whether it answers, from this data folder; Halt if another server does."""
        if not answers(self.port):
            return False
        try:
            with (
                self.connect(connect_timeout=ANSWER_S_MAX, read_timeout=ANSWER_S_MAX) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SELECT @@datadir")
                row = cursor.fetchone()
        except pymysql.err.OperationalError:
            return False
        if row is None or Path(row[0]).resolve() != self.datadir:
            raise Halt(f"port {self.port} of {self.name} is {PORT_TAKEN} by another server ({row})")
        return True

    def _make_account(self) -> None:
        """Create the account outside the binlog, so that the executed set stays empty."""
        quoted = json.dumps(self.password)
        grants = MARIADB_GRANTS if self.flavor is Flavor.MARIADB else GRANTS
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION sql_log_bin = 0")
            # Over the socket the server sees localhost.
            for host in (HOST, "localhost"):
                account = f"'{self.user}'@'{host}'"
                cursor.execute(f"CREATE USER IF NOT EXISTS {account}")
                cursor.execute(f"ALTER USER {account} IDENTIFIED BY {quoted}")
                cursor.execute(f"GRANT {grants} ON *.* TO {account}")
                if self.flavor is Flavor.MARIADB:
                    more = f"GRANT {MARIADB_IDENTITY_GRANTS} ON `\\_shardstream`.* TO {account}"
                    cursor.execute(more)


class MysqlServer(LocalDatabase):
    """A MySQL server with GTIDs and full row metadata."""

    flavor = Flavor.MYSQL
    family_arguments = MYSQL_ARGUMENTS
    find = staticmethod(find_mysql)
    initialise = staticmethod(initialise_mysql)


class MariadbServer(LocalDatabase):
    """A MariaDB server with a row binlog, strict GTIDs and full row metadata."""

    flavor = Flavor.MARIADB
    family_arguments = MARIADB_ARGUMENTS
    find = staticmethod(find_mariadb)
    initialise = staticmethod(initialise_mariadb)
