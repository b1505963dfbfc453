"""MySQL's binaries: the mysqld on PATH, else Debian's packages, unpacked but not installed."""

import shutil
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
from shardstream.local.fetching.debian_packages import (
    ORIGIN,
    debian_obstacle,
    own_loader,
    unpack_packages,
)

ENTRY = "mysql-debian"
# The oldest server whose binlog the producers read.
VERSION_MIN = (8, 0)
# The release that has MySQL; Debian's stable releases ship MariaDB only.
RELEASE = "sid"
PACKAGES = ("mysql-server-core", "mysql-client-core")
# Enough redo log for the initialisation; the default would enlarge every copy of the template by
# 100 MB. Servers before 8.0.30 neither know nor need it.
TEMPLATE_REDO = "--loose-innodb-redo-log-capacity=16M"


def find_mysql(report: Report = quiet) -> DatabaseBinaries:
    """Return MySQL's binaries, and fetch them if necessary.

    Raises UsageError with the reasons if they are not available here, Halt if fetching fails.
    """
    reasons = []
    if mysqld := shutil.which("mysqld"):
        line = version_line((mysqld,))
        if "MariaDB" in line:
            reasons.append(f"{mysqld} is MariaDB")
        elif (number := _release(line)) < VERSION_MIN:
            reasons.append(f"{mysqld} is {number}, older than {VERSION_MIN}")
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
        message = f"MySQL is not available here ({'; '.join(reasons)}); install it, or use MariaDB"
        raise UsageError(message)
    return unpacked(mysql_tree(report))


def mysql_tree(report: Report = quiet) -> Path:
    """Return the folder with Debian's packages, unpacked, and fetch it if necessary."""
    return cached(ENTRY, lambda folder: fetch_debian(folder, report), report=report)


def fetch_debian(folder: Path, report: Report) -> None:
    """Unpack the server into `folder`. Raises Retry if apt cannot fetch it."""
    unpack_packages(folder, RELEASE, PACKAGES, report)
    unpacked(folder)


def unpacked(root: Path) -> DatabaseBinaries:
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
            TEMPLATE_REDO,
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
