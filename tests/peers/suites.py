"""The regression suites of MySQL and MariaDB, from Debian's packages, and their servers."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from event_token import Flavor
from shardstream.local.database_binaries import DatabaseBinaries, unpacked_mysql
from shardstream.local.database_server import LocalDatabase, MariadbServer, MysqlServer
from shardstream.local.fetching import cached, own_loader, unpack_packages
from tests.database_servers import DatabaseFixture
from tests.producers.versions.fetched_servers import debian_mariadb

# The suites whose files run on any server; the others are about replication, plug-ins or faults.
MYSQL_SUITES = ("", "collations", "engines/funcs", "gcol", "gis", "innodb", "json", "parts")
MARIADB_SUITES = (
    *("main", "compat/oracle", "csv", "engines/funcs", "gcol", "heap", "innodb", "innodb_gis"),
    *("json", "maria", "merge", "parts", "period", "sql_sequence", "vcol", "versioning"),
)
# Files that need a server built, set up or restarted in a special way, or minutes.
SPECIAL = re.compile(
    r"have_(debug|ndb|component|keyring|group|example|nodebug)|restart|shutdown|master-slave|"
    r"big_test|kill_mysqld|expect_crash|have_32bit|windows\.inc|long_test|have_binlog_format_(st|mi)"
)
# Most files take a second; those that take longer wait for something that does not come.
FILE_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Suites:
    """A family's suites, unpacked, with the server that they were made for."""

    flavor: Flavor
    folder: Path  # what the files name others from
    program: tuple[str, ...]  # what runs a file
    files: tuple[Path, ...]
    server: type[LocalDatabase]


def mysql_suites() -> Suites:
    """Return MySQL's suites. Raises Retry if apt cannot fetch them."""
    packages = ("mysql-testsuite", "mysql-server-core", "mysql-client-core")
    root = cached("mysql-suites", lambda into: unpack_packages(into, "sid", packages, print))

    class SuiteMysql(MysqlServer):
        """The MySQL of the suites."""

        def binaries(self) -> DatabaseBinaries:
            return unpacked_mysql(root)

    folder = root / "usr/lib/mysql-test"
    program = (*own_loader(root, root / "usr/lib/mysql/private"), str(folder / "bin/mysqltest"))
    return Suites(Flavor.MYSQL, folder, program, _files(folder, MYSQL_SUITES), SuiteMysql)


def mariadb_suites() -> Suites:
    """Return MariaDB's suites. Raises Retry if apt cannot fetch them."""
    packages = ("mariadb-test", "mariadb-test-data", "mariadb-server-core")
    root = cached("mariadb-suites", lambda into: unpack_packages(into, "trixie", packages, print))

    class SuiteMariadb(MariadbServer):
        """The MariaDB of the suites."""

        def binaries(self) -> DatabaseBinaries:
            return debian_mariadb(root)

    folder = root / "usr/share/mariadb/mariadb-test"
    program = (*own_loader(root), str(root / "usr/bin/mariadb-test"))
    return Suites(Flavor.MARIADB, folder, program, _files(folder, MARIADB_SUITES), SuiteMariadb)


def _files(folder: Path, suites: Sequence[str]) -> tuple[Path, ...]:
    """The files that run on any server, in the order of the suites."""
    found: list[Path] = []
    for suite in suites:
        place = folder / suite if suite in ("", "main") else folder / "suite" / suite
        inner = place / "t"
        for path in sorted((inner if inner.is_dir() else place).glob("*.test")):
            options = [path.with_name(f"{path.stem}{end}") for end in ("-master.opt", ".cnf")]
            if not any(map(Path.exists, options)) and not _is_special(path):
                found.append(path)
    return tuple(found)


def _is_special(path: Path) -> bool:
    return SPECIAL.search(path.read_text("latin-1")) is not None


def run_file(suites: Suites, path: Path, server: DatabaseFixture) -> str:
    """Run one file on a server; return why it ended early, "" if it did not."""
    work = server.server.folder / "suite"
    for made in ("tmp", "log", "std_data_ln"):
        (work / made).mkdir(parents=True, exist_ok=True)
    socket = str(server.server.socket_path)
    environment = {
        "PATH": os.environ["PATH"],
        "TZ": "GMT-3",
        "LC_ALL": "C",
        "USER": "root",
        "MYSQL_TEST_DIR": str(suites.folder),
        "MYSQLTEST_VARDIR": str(work),
        "MYSQL_TMP_DIR": str(work / "tmp"),
        "MYSQLTEST_FILE": str(path),
        "MASTER_MYSOCK": socket,
        "MASTER_MYPORT": str(server.port),
        "DEFAULT_MASTER_PORT": str(server.port),
        "MYSQL_BINDIR": str(suites.folder),
        "MYSQLD_DATADIR": str(server.server.datadir),
    }
    # Nobody compares results: a statement that fails here must not end its file.
    program = work / "tmp" / "program.test"
    program.write_text(f"--disable_abort_on_error\n--source {path}\n")
    command = [
        *suites.program,
        "--no-defaults",
        "--silent",
        f"--basedir={suites.folder}/",
        f"--tmpdir={work / 'tmp'}",
        f"--logdir={work / 'log'}",
        f"--test-file={program}",
        f"--socket={socket}",
        "--user=root",
        "--database=test",
        "--max-connect-retries=3",
        "--tail-lines=3",
        *(["--skip-ssl", "--continue-on-error"] if suites.flavor is Flavor.MARIADB else []),
    ]
    try:
        done = subprocess.run(
            command,
            cwd=suites.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FILE_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {FILE_S_MAX} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    said = (line for line in lines if "rror" in line or "skip" in line.lower() or "must" in line)
    return next(said, " ".join(lines)[-200:])
