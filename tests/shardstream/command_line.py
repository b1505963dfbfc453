"""Runs `shardstream ...` as a user does, in a separate process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from tests.producers.session.producing import COMMIT_MS, HEARTBEAT_MS
from tests.program_starter import start_program
from tests.waiting import COSTLY_POLL_S, WAIT_S, wait_for

# Commands that end by themselves take seconds; this is for a busy machine.
COMMAND_S_MAX = 300


def command(*arguments: str) -> list[str]:
    """The command line of a shardstream command."""
    return [sys.executable, "-m", "shardstream", *arguments]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    with TemporaryFile() as out, TemporaryFile() as err:
        process = start_program("shardstream", arguments, out, err)
        try:
            status = process.wait(COMMAND_S_MAX)
        finally:
            process.kill()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
        return subprocess.CompletedProcess(command(*arguments), status, *texts)


def tail_to_end(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `tail` until it ends as one that has shown all.

    Where a producer was silent for a moment, as on a busy machine, it says so: then it runs again.
    """
    runs: list[subprocess.CompletedProcess[str]] = []

    def has_shown_all() -> bool:
        runs.append(run("tail", *arguments))
        is_whole = runs[-1].returncode == 0
        assert is_whole or "the stream is incomplete" in runs[-1].stderr, runs[-1].stderr
        return is_whole

    wait_for("tail shows all", has_shown_all, said=lambda: runs[-1].stderr)
    return runs[-1]


class Background:
    """A command that runs until it is stopped; its output goes to files."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self.output_path = folder / f"{name}.out"
        self.error_path = folder / f"{name}.err"
        with self.output_path.open("wb") as out, self.error_path.open("wb") as err:
            self.process = start_program("shardstream", arguments, out, err)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects printed so far."""
        text = self.output_path.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in text.splitlines()]

    @property
    def errors(self) -> str:
        """The output on standard error."""
        return self.error_path.read_text()

    def wait_for(self, what: str, condition: Callable[["Background"], bool]) -> None:
        """Wait until a condition holds; fails with the command's errors when it ends before."""
        wait_for(
            what,
            lambda: condition(self),
            said=lambda: f"{self.errors} {self.lines[-3:]}",
            process=self.process,
            poll_s=COSTLY_POLL_S,
        )

    def wait_end(self) -> int:
        """Wait until it ends by itself; return the exit status."""
        return self.process.wait(WAIT_S)


@contextmanager
def background(folder: Path, name: str, *arguments: str) -> Iterator[Background]:
    """Run a command for the duration of a block."""
    started = Background(folder, name, *arguments)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.wait()


def write_settings(
    folder: Path,
    bootstrap_servers: str,
    keyspace: str,
    shards: Mapping[str, Any],
    targets: Mapping[str, Any] | None = None,
) -> Path:
    """Write a settings file for shards, and targets of reshards, on given database fixtures."""
    # No test server waits for a disk.
    lines = ["[producer]", "accept_loss_at_server_crash = true"]
    lines += [f"commit_ms = {COMMIT_MS}", f"heartbeat_ms = {HEARTBEAT_MS}"]
    lines += ["[kafka]", f'bootstrap_servers = "{bootstrap_servers}"']
    for kind, databases in (("shards", shards), ("targets", targets or {})):
        for shard, database in databases.items():
            lines += [
                f'[keyspaces.{keyspace}.{kind}."{shard}"]',
                f'flavor = "{database.flavor}"',
                f'[[keyspaces.{keyspace}.{kind}."{shard}".servers]]',
                f'host = "{database.host}"',
                f"port = {database.port}",
                f'user = "{database.user}"',
                f'password_file = "password_{shard}"',
            ]
            (folder / f"password_{shard}").write_text(database.password)
    path = folder / "shardstream.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def write_cache(folder: Path, keyspace: str, cache: str, address: str, table: str) -> Path:
    """Add a cache to the settings in a folder, and the KeyMap of a table; return the settings."""
    path, module = folder / "shardstream.toml", f"maps_{cache.replace('-', '_')}"
    section = [f"[caches.{cache}]", f'keyspace = "{keyspace}"', "buckets = 64"]
    section += [f'store = "redis://{address}"', f'keys = "{module}:KEYS"']
    path.write_text(path.read_text() + "\n".join(section) + "\n")
    (folder / f"{module}.py").write_text(
        "from shardstream import KeyMap\nKEYS = KeyMap()\n"
        f"KEYS.of('{table}')(lambda row: [f\"t:{{row['id']}}\"])\n"
    )
    return path


def streaming(producer: Background) -> bool:
    """Whether a producer has begun to stream."""
    return any(line["state"] in {"streaming", "idle"} for line in producer.lines)


def publishing(invalidator: Background) -> bool:
    """Whether an invalidator has stored a position."""
    return any(line["position_age_s"] is not None for line in invalidator.lines)
