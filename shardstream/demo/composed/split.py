"""The live split of a shard: the commands that an operator types, one after the other."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from event_token.errors import Halt, UsageError
from shardstream.demo.composed.servers import KEYSPACE
from shardstream.demo.split import RESHARD_ID, SOURCE, TARGETS
from shardstream.settings.model import Settings
from topics.keyspace.topology import ReshardEntry, ReshardState, read_topology

# A minute where the stack has the machine to itself, ten times that on two busy cores.
STEP_S_MAX: Final = 600.0
# Each attempt starts a Python; what it waits for takes seconds.
PAUSE_S: Final = 2.0

Say = Callable[[str], None]


def run_split(settings: Settings, say: Say) -> None:
    """Split a shard while the shop goes on writing; can be run again after a failure.

    UsageError if the shard is split already. Halt if a step does not succeed in ten minutes.
    """
    entry = _reshard(settings)
    if entry is not None and entry.state == ReshardState.COMPLETED.value:
        raise UsageError(f"{SOURCE} is split already, into {' and '.join(TARGETS)}")
    if entry is None:
        targets = [word for target in TARGETS for word in ("--target", target)]
        _step(say, "create", "--source", SOURCE, *targets, is_repeated=False)
    if entry is None or entry.state == ReshardState.RUNNING.value:
        say("the targets' producers and appliers copy and follow; verify waits for them")
        _step(say, "verify")
        _step(say, "switch")
    _step(say, "complete")
    say(f"{SOURCE} is split; its producer and its database may be stopped")


def _reshard(settings: Settings) -> ReshardEntry | None:
    topology = read_topology(settings.kafka_client(), KEYSPACE)
    found = () if topology is None else topology.reshards
    return next((entry for entry in found if entry.reshard_id == RESHARD_ID), None)


def _step(say: Say, verb: str, *options: str, is_repeated: bool = True) -> None:
    """Run `shardstream reshard VERB`, and again while it refuses because something is not ready."""
    arguments = ["reshard", verb, KEYSPACE, RESHARD_ID, *options]
    say(f"$ shardstream {' '.join(arguments)}")
    ends_s = time.monotonic() + STEP_S_MAX
    while True:
        command = [sys.executable, "-m", "shardstream", *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            say(done.stdout.rstrip())
            return
        said = (done.stdout + done.stderr).rstrip()
        if not is_repeated or time.monotonic() > ends_s:
            raise Halt(f"`shardstream {' '.join(arguments)}` ended with {done.returncode}:\n{said}")
        time.sleep(PAUSE_S)
