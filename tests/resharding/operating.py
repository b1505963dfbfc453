"""An operator's steps of a reshard, as commands, while an application writes."""

import json
import re
import signal
import subprocess
import sys
from typing import Any

from resharding.switch.decision import Action
from shardstream.local.processes import with_parent_guard
from tests.resharding.application import FollowingWriter
from tests.resharding.flow import Flow
from tests.resharding.switchable import lets_in
from tests.resharding.writers import WRITERS
from tests.shardstream.command_line import COMMAND_S_MAX
from tests.stopped_process import is_stopped
from tests.waiting import wait_for
from topics.keyspace.topology import ReshardState

SWITCH_RUNS_MAX = 30
WRITES_MIN = 10  # per writer, before the next change of shards
STOPPED = re.compile(r"writes were stopped for (\d+) ms")


class Application:
    """The writers of a keyspace."""

    def __init__(self, keyspace: Flow, *, has_moves: bool) -> None:
        self.writers = [
            FollowingWriter(
                n, keyspace.servers, keyspace.schema, keyspace.serving, has_moves=has_moves
            )
            for n in range(WRITERS)
        ]

    def wait_writes(self, *shards: str) -> None:
        """Wait until every writer has written while exactly these shards serve."""
        before = [writer.done[shards] for writer in self.writers]

        def have_written() -> bool:
            for writer in self.writers:
                if writer.error is not None:
                    raise writer.error
            return all(
                writer.done[shards] >= then + WRITES_MIN
                for writer, then in zip(self.writers, before, strict=True)
            )

        wait_for(f"all write to {shards}", have_written)


def create_arguments(reshard_id: str, sources: Any, targets: Any) -> list[str]:
    """The arguments of `reshard create`."""
    named = [("--source", s) for s in sources] + [("--target", t) for t in targets]
    return [reshard_id, *(word for pair in named for word in pair)]


def create(
    keyspace: Flow, reshard_id: str, sources: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    """Create a reshard and start its targets' producers."""
    keyspace.reshard("create", *create_arguments(reshard_id, sources, targets))
    keyspace.produce(*targets)


def verify(keyspace: Flow, reshard_id: str, targets: tuple[str, ...]) -> None:
    """Run `verify`, which must find no difference."""
    done = keyspace.reshard("verify", reshard_id, "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(v["target"], v["differing"]) for v in found] == [(t, 0) for t in targets]
    assert all(v["rows"] > 0 for v in found)


def complete(
    keyspace: Flow, reshard_id: str, sources: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    """Stop the source's processes and run `complete`; check the topology."""
    for target in targets:
        keyspace.kill("reshard", "run", keyspace.keyspace, reshard_id, target)
    for source in sources:
        keyspace.kill("produce", keyspace.keyspace, source)
    keyspace.reshard("complete", reshard_id)
    states = {entry.reshard_id: entry.state for entry in keyspace.topology().reshards}
    assert states[reshard_id] == ReshardState.COMPLETED.value


def follow(
    keyspace: Flow, reshard_id: str, sources: tuple[str, ...], targets: tuple[str, ...]
) -> None:
    """Create a reshard and wait until its targets have caught up with the sources."""
    create(keyspace, reshard_id, sources, targets)
    keyspace.apply(reshard_id, *targets)
    keyspace.wait_copied(reshard_id, sources, targets)


def switch_over(
    keyspace: Flow, application: Application, reshard_id: str, targets: tuple[str, ...]
) -> None:
    """Verify and switch while the application writes; it continues on the targets."""
    verify(keyspace, reshard_id, targets)
    for _ in range(SWITCH_RUNS_MAX):
        done = keyspace.run("reshard", "switch", keyspace.keyspace, reshard_id)
        if not lags(done.stderr):
            break
    assert (done.returncode, bool(STOPPED.search(done.stdout))) == (0, True), done.stderr
    application.wait_writes(*targets)


def lags(said: str) -> bool:
    """Whether a switch did not begin because the machine is too busy; an operator would retry."""
    return "not ready to switch" in said and "verify" not in said


def start_switch(
    keyspace: Flow, reshard_id: str, signal_name: str, step: str, *more: str
) -> "subprocess.Popen[str]":
    """A `switch` that sends itself a signal before a step."""
    asked = ["reshard", "switch", keyspace.keyspace, reshard_id, "--config", keyspace.config, *more]
    command = [sys.executable, "-m", "tests.resharding.command_at", signal_name, step, *asked]
    return subprocess.Popen(
        with_parent_guard(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def frozen_switch(keyspace: Flow, reshard_id: str, *more: str) -> "subprocess.Popen[str]":
    """A `switch` that is paused just before it decides."""
    for _ in range(SWITCH_RUNS_MAX):
        process = start_switch(keyspace, reshard_id, "SIGSTOP", Action.DECIDE.value, *more)
        wait_for("it stands still", lambda process=process: stands_still(process))  # type: ignore[misc]
        if process.poll() is None:
            return process
        _, said = process.communicate()
        assert lags(said), said
    raise AssertionError(f"the targets lag after {SWITCH_RUNS_MAX} tries")


def stands_still(process: "subprocess.Popen[str]") -> bool:
    """Whether a process is paused or has ended."""
    return process.poll() is not None or is_stopped(process.pid)


def wakes_for_nothing(
    keyspace: Flow, frozen: "subprocess.Popen[str]", shards: tuple[str, ...]
) -> None:
    """A paused `switch` that resumes after another command has taken over changes nothing."""
    before = world(keyspace, shards)
    frozen.send_signal(signal.SIGCONT)
    _, said = frozen.communicate(timeout=COMMAND_S_MAX)
    assert (frozen.returncode, "Traceback" in said) == (1, False), said
    assert world(keyspace, shards) == before


def killed_switch(keyspace: Flow, reshard_id: str, before: str) -> list[str]:
    """Run `switch`, killed before a step of this run, by number or action; return those done."""
    for _ in range(SWITCH_RUNS_MAX):
        process = start_switch(keyspace, reshard_id, "SIGKILL", before)
        told, said = process.communicate(timeout=COMMAND_S_MAX)
        open_shards = {s for s in ("-80", "80-", "-.2") if lets_in(keyspace.servers[s])}
        assert not ("-.2" in open_shards and open_shards - {"-.2"})
        if not lags(said):
            assert process.returncode == -signal.SIGKILL, said
            return told.splitlines()[:-1]
    raise AssertionError(f"the targets lag after {SWITCH_RUNS_MAX} tries")


def world(keyspace: Flow, shards: tuple[str, ...]) -> list[Any]:
    """Everything a switch can change: topology, journals, and account locks."""
    found: list[Any] = [keyspace.topology()]
    for shard in shards:
        database = keyspace.servers[shard]
        found.append(lets_in(database))
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM _shardstream.journal ORDER BY reshard_id")
            found.append(cursor.fetchall())
    return found
