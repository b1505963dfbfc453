"""A real MySQL or MariaDB server on loopback, in its own folder."""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pymysql
from pymysql.connections import Connection
from pymysql.cursors import Cursor

from event_token import Flavor, Halt
from shardstream.local.fetching.binaries import DatabaseBinaries, as_root_arguments
from shardstream.local.fetching.cache import Report, cached, quiet
from shardstream.local.fetching.mariadb_binaries import find_mariadb, initialise_mariadb
from shardstream.local.fetching.mysql_binaries import find_mysql, initialise_mysql
from shardstream.local.ports import HOST, answers, finish_start, free_ports
from shardstream.local.processes import ServerProcess

# A start takes 1-3 s, or 60 s beside ten others; a server that dies is noticed at once.
READY_S_MAX = 300.0
READY_POLL_S = 0.1
PORT_TAKEN = "already in use"
# sun_path of a Unix socket is 108 bytes with its final zero.
SOCKET_PATH_MAX = 107
ROOT_USER = "root"

# Exactly what a producer needs. PROCESS shows the foreign keys whose cascades no binlog has.
GRANTS = "REPLICATION SLAVE, REPLICATION CLIENT, PROCESS, SELECT"
# A replica's filters, which MySQL shows to REPLICATION CLIENT.
MARIADB_GRANTS = f"{GRANTS}, REPLICA MONITOR"
# The row by which a shard's servers of MariaDB are told from others.
MARIADB_IDENTITY_GRANTS = "CREATE, INSERT"

COMMON_ARGUMENTS = (
    f"--bind-address={HOST}",
    "--skip-name-resolve",
    "--secure-file-priv=",
    # Several servers share one machine.
    "--innodb-buffer-pool-size=64M",
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
class Account:
    """A database account."""

    user: str
    password: str


class DatabaseServer:
    """One server; `start()` also creates its data folder and its replication account."""

    flavor: Flavor

    def __init__(
        self,
        folder: Path,
        *,
        server_id: int,
        account: Account,
        extra_args: Sequence[str] = (),
        die_with_parent: bool = False,
        report: Report = quiet,
    ) -> None:
        """Start nothing yet. `extra_args` come last, so they take precedence."""
        self.folder = folder.resolve()
        self.name = f"{self.flavor} {self.folder.name}"
        self.server_id = server_id
        self.host = HOST
        self.root_user = ROOT_USER
        self.user = account.user
        self.password = account.password
        self.extra_args = tuple(extra_args)
        self._report = report
        self._port_is_new = False
        self._process = ServerProcess(self.name, self.folder, die_with_parent=die_with_parent)

    @property
    def has_port(self) -> bool:
        """Whether this folder's server has ever been started."""
        return self._port_path.exists()

    @property
    def port(self) -> int:
        """The TCP port, the same at each start of this folder; Halt before the first."""
        if not self.has_port:
            message = f"{self.name} has not been started yet, it has no port"
            raise Halt(message)
        return int(self._port_path.read_text())

    @property
    def pid(self) -> int | None:
        """The server's process, None if it is not running."""
        return self._process.pid

    @property
    def log_path(self) -> Path:
        """The server's error log."""
        return self._process.log_path

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
        raise NotImplementedError

    def initialise(self, binaries: DatabaseBinaries, target: Path) -> None:
        """Create an empty data folder."""
        raise NotImplementedError

    def family_arguments(self) -> Sequence[str]:
        """Return settings that only this family has."""
        raise NotImplementedError

    def start(self) -> None:
        """Start, wait until it serves, create the account. Raises Halt with the log's tail."""
        self.launch()
        self.finish_start()

    def finish_start(self) -> None:
        """Wait for a launched server; launch it again if its new port was taken meanwhile.

        Raises Halt with the log's tail, and then leaves no process behind.
        """
        finish_start(self.wait_ready, self._abandon, self._launch_elsewhere)
        self._port_is_new = False

    def _abandon(self) -> bool:
        taken = self._process.log_says(PORT_TAKEN)
        self.kill()
        return taken and self._port_is_new

    def _launch_elsewhere(self) -> None:
        self._port_path.unlink()
        self.log_path.unlink()
        self.launch()

    def launch(self) -> None:
        """Start without waiting, so that servers start in parallel; `finish_start` follows."""
        binaries = self.binaries()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.datadir.exists():
            self._make_datadir(binaries)
        if not self.has_port:
            self._port_path.write_text(f"{free_ports(1)[0]}\n")
            self._port_is_new = True
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
                *self.family_arguments(),
                *self.extra_args,
            ]
        )

    def wait_ready(self) -> None:
        """Wait until the server answers, then create the replication account. Raises Halt."""
        deadline = time.monotonic() + READY_S_MAX
        while not self._serves():
            self._process.check_alive()
            if time.monotonic() > deadline:
                raise self._process.fail_start(READY_S_MAX)
            time.sleep(READY_POLL_S)
        self._make_account()

    def stop(self) -> None:
        """Shut down cleanly and wait."""
        self._process.stop()
        self._remove_socket()

    def ask_to_stop(self) -> None:
        """Request a clean shutdown without waiting; `stop` waits."""
        self._process.ask_to_stop()

    def kill(self) -> None:
        """Kill without warning and wait."""
        self._process.kill()
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

    @property
    def _port_path(self) -> Path:
        return self.folder / "port"

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

    def _serves(self) -> bool:
        if not answers(self.port):
            return False
        try:
            connection = self.connect(connect_timeout=5, read_timeout=5)
        except pymysql.err.OperationalError:
            return False
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@datadir")
            row = cursor.fetchone()
        if row is None or Path(row[0]).resolve() != self.datadir:
            message = f"port {self.port} of {self.name} is {PORT_TAKEN} by another server ({row})"
            raise Halt(message)
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


class MysqlServer(DatabaseServer):
    """A MySQL server with GTIDs and full row metadata."""

    flavor: Flavor = Flavor.MYSQL

    def binaries(self) -> DatabaseBinaries:
        """Return the mysqld on PATH, or Debian's."""
        return find_mysql(self._report)

    def initialise(self, binaries: DatabaseBinaries, target: Path) -> None:
        """Run `mysqld --initialize-insecure`."""
        initialise_mysql(binaries, target)

    def family_arguments(self) -> Sequence[str]:
        """Return settings that only MySQL has."""
        return MYSQL_ARGUMENTS


class MariadbServer(DatabaseServer):
    """A MariaDB server with a row binlog, strict GTIDs and full row metadata."""

    flavor: Flavor = Flavor.MARIADB

    def binaries(self) -> DatabaseBinaries:
        """Return the mariadbd on PATH, or the Maven artifact's."""
        return find_mariadb(self._report)

    def initialise(self, binaries: DatabaseBinaries, target: Path) -> None:
        """Run mariadb-install-db."""
        initialise_mariadb(binaries, target)

    def family_arguments(self) -> Sequence[str]:
        """Return settings that only MariaDB has."""
        return MARIADB_ARGUMENTS
