"""Runs the producers of a stack, one process per shard, each as an operator would run it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from shardstream.local.processes import wait_or_kill, with_parent_guard

# How late the end of a producer, or of all, may be noticed.
POLL_S = 0.2
# A producer ends within a second of the signal; beyond this it hangs.
STOP_S_MAX = 30.0


def run_producers(settings: Path, keyspace: str, shards: Sequence[str], stop: Event) -> int:
    """Run a producer per shard until `stop` is set or one of them ends; then end all.

    Return 0 after `stop`, else the exit status of the one that ended, which has said why.
    """
    producers: list[subprocess.Popen[bytes]] = []
    try:
        for shard in shards:
            produce = ("produce", keyspace, shard, "--config", str(settings))
            command = with_parent_guard([sys.executable, "-m", "shardstream", *produce])
            # A separate session: Ctrl-C reaches this process alone, which ends them in order.
            producers.append(subprocess.Popen(command, start_new_session=True))
        while not stop.wait(POLL_S):
            for producer in producers:
                if producer.poll() is not None:
                    return producer.returncode if producer.returncode > 0 else 1
        return 0
    finally:
        for producer in producers:
            producer.terminate()
        for producer in producers:
            wait_or_kill(producer, STOP_S_MAX)
