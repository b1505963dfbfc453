"""The user's cache folder: what is fetched or initialised once and then used by every stack.

An entry is a folder that is either complete or absent: it is created under a temporary name next to
its place and renamed, under a lock that other processes respect.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from event_token.errors import Halt, Retry

Report: TypeAlias = Callable[[str], None]

# Three: a registry that fails for a moment is common, one that fails three times in a row is down.
FETCH_ATTEMPTS_MAX = 3
FETCH_PAUSE_S = 2.0
# Longest wait for another process's fetch: 150 MB over a slow line.
LOCK_WAIT_S_MAX = 1800.0
LOCK_POLL_S = 0.2


def quiet(_message: str) -> None:
    """Discard progress."""


def cache_folder() -> Path:
    """`$SHARDSTREAM_CACHE`, else `$XDG_CACHE_HOME/shardstream`, else `~/.cache/shardstream`."""
    if chosen := os.environ.get("SHARDSTREAM_CACHE"):
        return Path(chosen).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().resolve() / "shardstream"


@contextmanager
def exclusive(lock_path: Path, *, report: Report = quiet) -> Iterator[None]:
    """Hold the lock file exclusively; wait at most `LOCK_WAIT_S_MAX` seconds for another process.

    Raises Halt if the other process keeps it longer.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_WAIT_S_MAX
    told = False
    with lock_path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another process has held {lock_path} for {LOCK_WAIT_S_MAX:.0f} s"
                    raise Halt(message) from None
                if not told:
                    report(f"waiting for another process ({lock_path.name})")
                    told = True
                time.sleep(LOCK_POLL_S)
        yield


def cached(name: str, make: Callable[[Path], None], *, report: Report = quiet) -> Path:
    """Return the cache entry `name`; create it by `make(temporary folder)` if it is missing.

    `make` raises Retry for a fault worth another attempt (at most `FETCH_ATTEMPTS_MAX`, in the same
    folder, so that a fetch can resume). Raises Halt if no attempt succeeds.
    """
    folder = cache_folder()
    entry = folder / name
    if entry.is_dir():
        return entry
    with exclusive(folder / f"{name}.lock", report=report):
        if entry.is_dir():
            return entry
        # Left behind by a killed process: the lock proves that nobody is writing there now.
        for stale in folder.glob(f".{name}~*"):
            shutil.rmtree(stale)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}~", dir=folder))
        try:
            _attempt(name, make, temporary, report)
            temporary.chmod(0o755)
            temporary.rename(entry)
        finally:
            if temporary.exists():
                shutil.rmtree(temporary)
    return entry


def _attempt(name: str, make: Callable[[Path], None], temporary: Path, report: Report) -> None:
    for attempt in range(1, FETCH_ATTEMPTS_MAX + 1):
        try:
            make(temporary)
        except Retry as fault:
            if attempt == FETCH_ATTEMPTS_MAX:
                message = f"{name} could not be fetched in {attempt} attempts: {fault}"
                raise Halt(message) from fault
            report(f"{name}: attempt {attempt} of {FETCH_ATTEMPTS_MAX} failed, trying again")
            time.sleep(FETCH_PAUSE_S * attempt)
        else:
            return
