"""Redis's and memcached's servers: those on PATH, else Debian's packages, not installed."""

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

# The release whose packages are unpacked: Redis 7.0.15 and memcached 1.6.18.
RELEASE = "bookworm"


@dataclass(frozen=True, slots=True)
class CacheBinary:
    """A server's program on PATH, and Debian's package with it."""

    program: str
    package: str


REDIS = CacheBinary("redis-server", "redis-server")
MEMCACHED = CacheBinary("memcached", "memcached")


def find_server(wanted: CacheBinary, report: Report = quiet) -> tuple[str, ...]:
    """Return the command of a server, and fetch it if necessary.

    Raises UsageError with the reason if it is not available here, Halt if fetching fails.
    """
    if found := shutil.which(wanted.program):
        return (found,)
    if obstacle := debian_obstacle():
        raise UsageError(
            f"no {wanted.program} on PATH, and it is not unpacked from Debian's packages: "
            f"{obstacle}; install {wanted.package}"
        )

    def fetch(folder: Path) -> None:
        unpack_packages(folder, RELEASE, (wanted.package,), report)
        _unpacked(folder, wanted)

    return _unpacked(cached(f"{wanted.package}-{RELEASE}", fetch, report=report), wanted)


def _unpacked(root: Path, wanted: CacheBinary) -> tuple[str, ...]:
    program = root / "usr/bin" / wanted.program
    if not program.exists():
        raise UsageError(f"{root} has no {wanted.program}: remove it, it will be fetched again")
    return (*own_loader(root), str(program))
