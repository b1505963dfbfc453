"""Where MySQL comes from: the mysqld on PATH, else Debian's packages, unpacked, not installed."""

import platform
import re
import shutil
from pathlib import Path

from event_token import Flavor, Retry, UsageError
from shardstream.local.binaries import (
    INITIALISE_S_MAX,
    DatabaseBinaries,
    as_root_arguments,
    run_step,
    version_line,
    version_number,
)
from shardstream.local.cache import Report, cached, quiet

ENTRY = "mysql-debian"
# The oldest server whose binlog the producers read.
VERSION_MIN = (8, 0)
# The release that has MySQL; Debian's stable ones ship MariaDB alone.
RELEASE = "sid"
PACKAGES = ("mysql-server-core", "mysql-client-core")
# Package lists are 10 MB, the packages 66 MB.
DOWNLOAD_S_MAX = 900
UNPACK_S_MAX = 120
# Enough for the redo of an initialisation; the default would make every copy of the template 100 MB
# larger.
TEMPLATE_REDO = "--innodb-redo-log-capacity=16M"


def find_mysql(report: Report = quiet) -> DatabaseBinaries:
    """Give MySQL's binaries, fetching them where needed and possible.

    Raises UsageError with the reasons when there is no way to have them here, Halt when fetching
    fails.
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
        message = f"MySQL is not to be had here ({'; '.join(reasons)}); install it, or use MariaDB"
        raise UsageError(message)
    return unpacked(cached(ENTRY, lambda folder: fetch_debian(folder, report), report=report))


def debian_obstacle() -> str | None:
    """Say why Debian's packages cannot be unpacked on this machine; None when they can."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "this is not Linux"
    if release.get("ID") != "debian":
        return f"this is {release.get('PRETTY_NAME', 'another system')}, not Debian"
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            return f"no {tool} on PATH"
    if mirror() is None:
        return "apt's own sources name no mirror"
    if keyring() is None:
        return "no Debian archive keyring"
    return None


def mirror() -> str | None:
    """Give the mirror that the machine's own apt sources name."""
    folder = Path("/etc/apt")
    for source in sorted(folder.glob("sources.list.d/*.sources")):
        if found := re.search(r"^URIs:\s*(\S+)", source.read_text(), re.MULTILINE):
            return found.group(1)
    for source in [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list"))]:
        if source.exists() and (
            found := re.search(r"^deb\s+(?:\[[^]]*\]\s*)?(\S+)", source.read_text(), re.MULTILINE)
        ):
            return found.group(1)
    return None


def keyring() -> Path | None:
    """Give the file with Debian's archive keys."""
    return next(iter(sorted(Path("/usr/share/keyrings").glob("debian-archive-keyring.*"))), None)


def fetch_debian(folder: Path, report: Report) -> None:
    """Unpack the server and all its libraries into `folder`; the system stays as it is.

    Raises Retry when apt cannot bring them.
    """
    scratch = folder / ".apt"
    lists, archives = scratch / "lists", scratch / "cache" / "archives"
    for made in (lists, archives):
        (made / "partial").mkdir(parents=True, exist_ok=True)
    source = scratch / "sources.list"
    source.write_text(f"deb [signed-by={keyring()}] {mirror()} {RELEASE} main\n")
    # An empty status file: apt believes that nothing is installed, so all libraries come along.
    status = scratch / "status"
    status.touch()
    options = {
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::State::status": status,
        "Dir::Cache": scratch / "cache",
    }
    apt = [
        "apt-get",
        "-q",
        *(part for key, value in options.items() for part in ("-o", f"{key}={value}")),
    ]
    report("fetching Debian's package lists")
    run_step([*apt, "update"], what="apt-get update", timeout_s=DOWNLOAD_S_MAX, error=Retry)
    report(f"fetching {', '.join(PACKAGES)}")
    install = [*apt, "install", "-y", "--no-install-recommends", "--download-only", *PACKAGES]
    run_step(install, what="apt-get install --download-only", timeout_s=DOWNLOAD_S_MAX, error=Retry)
    report("unpacking MySQL")
    for package in sorted(archives.glob("*.deb")):
        # Perl comes as a dependency of scripts that nobody here runs: 55 MB.
        if not package.name.startswith(("perl", "libperl")):
            unpack = ["dpkg-deb", "--extract", str(package), str(folder)]
            run_step(unpack, what=f"unpacking {package.name}", timeout_s=UNPACK_S_MAX, error=Retry)
    shutil.rmtree(scratch)
    unpacked(folder)


def unpacked(root: Path) -> DatabaseBinaries:
    """Give the binaries of an unpacked tree, run by its own loader: any host's libc will do."""
    loader = next(iter(sorted(root.glob("usr/lib*/ld-linux*.so*"))), None)
    libraries = next(iter(sorted(root.glob("usr/lib/*-linux-gnu*"))), None)
    if loader is None or libraries is None:
        message = f"{root} holds no loader or no libraries: remove it, it will be fetched again"
        raise UsageError(message)
    run = (str(loader), "--library-path", f"{libraries}:{root}/usr/lib/mysql/private")
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
    return DatabaseBinaries(Flavor.MYSQL, version, server, dump, "Debian's packages")


def initialise_mysql(binaries: DatabaseBinaries, target: Path) -> None:
    """Make a data folder with the one account root, without password. Raises Halt."""
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
    # Holds server_uuid, which every server has to draw for itself.
    (target / "auto.cnf").unlink(missing_ok=True)


def _release(line: str) -> tuple[int, int]:
    major, minor, *_ = version_number(line).split(".")
    return int(major), int(minor)
