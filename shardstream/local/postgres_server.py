"""A real PostgreSQL server on loopback, in its own folder."""

import os
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from event_token import UsageError
from shardstream.local.fetching import Report, own_loader, quiet, unpacked
from shardstream.local.local_server import LocalServer, ServerOptions
from shardstream.local.processes import INITIALISE_S_MAX, run_step

PACKAGE = "postgresql-15"
# Debian installs each version beside the others, and puts none of its servers on PATH.
INSTALLED = Path("/usr/lib/postgresql")
UNPACKED = "usr/lib/postgresql/15/bin"

# initdb starts `postgres` of its own folder: here one that finds its loader and libraries, wherever
# the tree lies.
_WRAPPER = """#!/bin/sh
root=$(cd "$(dirname "$0")/../../../../.." && pwd)
exec {command} "$(dirname "$0")/postgres.program" "$@"
"""


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The commands of the server and of initdb."""

    server: tuple[str, ...]
    initdb: tuple[str, ...]


def find_postgres(report: Report = quiet) -> PostgresBinaries:
    """Return PostgreSQL's binaries, and fetch them if necessary.

    Raises UsageError with the reason if they are not available here, Halt if fetching fails.
    """
    for folder in _installed():
        server, initdb = folder / "postgres", folder / "initdb"
        if server.exists() and initdb.exists():
            return PostgresBinaries((str(server),), (str(initdb),))
    root = unpacked("postgres", PACKAGE, _wrap, report)
    initdb = root / UNPACKED / "initdb"
    return PostgresBinaries((str(root / UNPACKED / "postgres"),), (*own_loader(root), str(initdb)))


def _installed() -> list[Path]:
    """The folders that may hold an installed server, the one on PATH first, then the newest."""
    on_path = shutil.which("postgres")
    versions = sorted(
        (path for path in INSTALLED.glob("*/bin") if path.parent.name.isdecimal()),
        key=lambda path: int(path.parent.name),
        reverse=True,
    )
    return [*([Path(on_path).resolve().parent] if on_path else []), *versions]


def _wrap(root: Path) -> None:
    """Put a script in the place of the server that runs it by the tree's own loader."""
    server = root / UNPACKED / "postgres"
    server.rename(server.with_name("postgres.program"))
    # The tree is renamed after this: paths in the script are relative to the script itself.
    inside = [part.replace(str(root), "$root") for part in own_loader(root)]
    server.write_text(_WRAPPER.format(command=" ".join(f'"{part}"' for part in inside)))
    server.chmod(0o755)


SUPERUSER = "postgres"
# Nobody's user id on every Linux.
NOBODY = 65534
# The line of postmaster.pid that says whether the server takes connections.
STATUS_LINE = 7
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Several servers share one machine.
    "shared_buffers": "64MB",
    "max_connections": "100",
    "log_min_messages": "warning",
}
# For data that nobody keeps: nothing waits for the disk. Writes survive a killed server, but not a
# killed machine.
NOT_DURABLE = ("-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")


class PostgresServer(LocalServer):
    """One server with the superuser `postgres`; `start()` also creates its data folder."""

    # A start takes less than a second, far longer on a busy machine.
    ready_s_max = 300.0
    ready_poll_s = 0.05
    # SIGTERM would wait until all clients have left.
    stop_signal = signal.SIGINT

    kind = "postgres"

    def __init__(self, folder: Path, *, password: str, **options: Unpack[ServerOptions]) -> None:
        """Start nothing yet."""
        super().__init__(folder, **options)
        self.user = SUPERUSER
        self.password = password

    @property
    def datadir(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def launch(self) -> None:
        """Start without waiting: `finish_start` follows."""
        binaries = find_postgres(self._report)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.datadir.exists():
            self._initialise(binaries)
        self._choose_ports(1)
        self._report(f"starting {self.name}")
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        place = ("-D", str(self.datadir), "-p", str(self.port))
        self._process.launch(
            [*not_as_root(), *binaries.server, *place, *settings, *self.extra_args]
        )

    def serves(self) -> bool:
        """Whether this folder's process takes connections."""
        try:
            lines = (self.datadir / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        if len(lines) <= STATUS_LINE or lines[STATUS_LINE].strip() != "ready":
            return False
        return int(lines[0]) == self.pid

    def _initialise(self, binaries: PostgresBinaries) -> None:
        """Create the data folder; a first attempt that was cut off leaves nothing behind."""
        making, secret = self.folder / "making", self.folder / "secret"
        if making.exists():
            shutil.rmtree(making)
        secret.touch(mode=0o600)
        secret.write_text(self.password)
        self._report(f"initialising {self.name}")
        options = ("--no-sync", "--no-locale", "--encoding=UTF8", "--auth=scram-sha-256")
        account = (f"--username={SUPERUSER}", f"--pwfile={secret}")
        run_step(
            [*not_as_root(), *binaries.initdb, *options, *account, "-D", str(making)],
            what=f"initialising {self.name}",
            timeout_s=INITIALISE_S_MAX,
        )
        secret.unlink()
        making.rename(self.datadir)


def not_as_root() -> tuple[str, ...]:
    """How root runs the server, which refuses root: as nobody, who may enter root's folders."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        raise UsageError("PostgreSQL refuses to run as root, and there is no setpriv on PATH")
    user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    # With no_setuid_fixup the capability counts for access(2) too.
    access = ("--inh-caps=+dac_override", "--ambient-caps=+dac_override")
    kept = ("--securebits=+no_setuid_fixup", "--pdeathsig", "keep")
    return ("setpriv", *user, *access, *kept)
