"""The binaries of a database family: its commands and how its data folder is initialised."""

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from event_token import Flavor, Halt, Retry, UsageError

# Initialisation takes 2-10 s; after this long it hangs.
INITIALISE_S_MAX = 300
OUTPUT_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class DatabaseBinaries:
    """Commands of one family and version; `binlog_dump` is empty if there is none."""

    flavor: Flavor
    version: str
    server: tuple[str, ...]
    binlog_dump: tuple[str, ...] = ()
    origin: str = "PATH"
    # The folder of the SQL that creates MariaDB's system tables; None: mariadb-install-db knows it.
    sql_folder: Path | None = None

    @property
    def template_name(self) -> str:
        """The name of the cache entry with an initialised data folder of this version."""
        return f"{self.flavor}-datadir-{re.sub(r'[^0-9A-Za-z.]+', '_', self.version)}"


def as_root_arguments() -> list[str]:
    """Return the options that a server needs in order to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


@cache
def version_line(server: tuple[str, ...]) -> str:
    """Return what the server prints for `--version`. Raises UsageError if it cannot run."""
    try:
        done = subprocess.run(
            [*server, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=INITIALISE_S_MAX,
        )
    except OSError as fault:
        message = f"{server[0]} cannot be run: {fault}"
        raise UsageError(message) from fault
    if done.returncode != 0:
        message = f"{' '.join(server)} --version failed: {done.stderr.strip()}"
        raise UsageError(message)
    return done.stdout.strip()


def version_number(line: str) -> str:
    """Return the version in a `--version` line: `9.7.4`, `11.4.5-MariaDB`. Raises UsageError."""
    found = re.search(r"\bVer\s+(\d+\.\d+\.\d+\S*)", line)
    if found is None:
        message = f"no version in {line!r}"
        raise UsageError(message)
    return found.group(1)


def run_step(
    command: Sequence[str],
    *,
    what: str,
    timeout_s: float,
    error: type[Halt | Retry] = Halt,
    env: dict[str, str] | None = None,
    given: str = "",
) -> None:
    """Run a command to its end, with `given` as its input.

    Raises `error` with the end of its output if it fails or takes too long.
    """
    try:
        done = subprocess.run(
            command,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=None if env is None else {**os.environ, **env},
        )
    except subprocess.TimeoutExpired as slow:
        message = f"{what} has not finished after {timeout_s:.0f} s"
        raise error(message) from slow
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-OUTPUT_TAIL_LINES:])
        message = f"{what} failed with status {done.returncode}:\n{tail}"
        raise error(message)
