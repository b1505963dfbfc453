"""PostgreSQL's binaries: those on PATH or installed by Debian, else unpacked, not installed."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from event_token import UsageError
from shardstream.local.fetching.cache import Report, cached, quiet
from shardstream.local.fetching.debian_packages import (
    debian_obstacle,
    own_loader,
    unpack_packages,
)

# The release whose packages are unpacked, with PostgreSQL 15.
RELEASE = "bookworm"
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
    if obstacle := debian_obstacle():
        raise UsageError(
            f"no postgres on PATH, and it is not unpacked from Debian's packages: {obstacle}; "
            f"install {PACKAGE}"
        )

    def fetch(folder: Path) -> None:
        unpack_packages(folder, RELEASE, (PACKAGE,), report)
        _wrap(folder)

    root = cached(f"{PACKAGE}-{RELEASE}", fetch, report=report)
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
