"""The control groups of the engine made here, which no namespace takes along when it ends."""

import fcntl
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CONTROLLERS = Path("/sys/fs/cgroup")
NAME = "shardstream-ecosystem"
# The kernel ends the processes of a pid namespace at once; a process in a disk write takes longer.
GONE_S_MAX = 60.0
POLL_S = 0.2


def remove_when_released(lock: Path) -> None:
    """Remove the groups once nobody holds the lock, also when its holder was killed."""
    command = [sys.executable, "-m", "tests.ecosystem.cgroups", str(lock)]
    # Its own session: a signal to the terminal's processes must not end it.
    subprocess.Popen(command, start_new_session=True)


def remove_cgroups() -> bool:
    """Remove the groups whose processes have ended; return whether all are gone."""
    for top in _groups():
        # The deepest first; a group is a folder that only rmdir removes.
        for folder in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
            with suppress(OSError):
                folder.rmdir()
        with suppress(OSError):
            top.rmdir()
    return not _groups()


def _groups() -> list[Path]:
    return [*CONTROLLERS.glob(NAME), *CONTROLLERS.glob(f"*/{NAME}")]


def main(lock: Path) -> None:
    """Wait for the lock, then remove the groups."""
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ends_s = time.monotonic() + GONE_S_MAX
        while not remove_cgroups() and time.monotonic() < ends_s:
            time.sleep(POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
