"""The oldest and the newest servers that the suite can have, beside those of its fixtures."""

import platform

from shardstream.local.database_binaries import DatabaseBinaries
from shardstream.local.database_server import MariadbServer, MysqlServer
from shardstream.local.fetching import debian_obstacle
from tests.producers.versions.fetched_servers import find_debian_mariadb, find_old_mysql


class OldMariadb(MariadbServer):
    """MariaDB 10.5, as Debian 11 has it."""

    def binaries(self) -> DatabaseBinaries:
        """Give Debian's."""
        return find_debian_mariadb("bullseye")


class NewMariadb(MariadbServer):
    """MariaDB 11.8, as Debian 13 has it."""

    def binaries(self) -> DatabaseBinaries:
        """Give Debian's."""
        return find_debian_mariadb("trixie")


class OldMysql(MysqlServer):
    """MySQL 8.0.15, as a Maven artifact has it."""

    def binaries(self) -> DatabaseBinaries:
        """Give the artifact's."""
        return find_old_mysql()


def are_to_be_had() -> bool:
    """Whether these servers run on this machine."""
    return debian_obstacle() is None and platform.machine() == "x86_64"
