"""Take the machine's Docker engine, or make one; build the images; run the tests of this folder.

Without a Docker engine this needs root on Debian. Nothing on the machine is changed except that
the package mmdebstrap is installed if it is missing. The engine lives in namespaces of its own, so
that its processes, mounts and network end with this command, however it ends.
"""

import os
import subprocess
import sys
import time

from shardstream.local.fetching import cache_folder, exclusive
from shardstream.local.processes import with_parent_guard
from tests.ecosystem.cgroups import remove_when_released
from tests.ecosystem.docker_commands import machine_engine
from tests.ecosystem.engine import prepare
from tests.ecosystem.phases import run_tests

# Processes, mounts and the pid namespace of the engine die with its first process.
NAMESPACES = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child=SIGKILL")
PHASES = {"build": (), "test": ("--net",)}


def main(arguments: list[str]) -> int:
    """Run both phases; return pytest's exit status."""
    began_s = time.monotonic()

    def report(message: str) -> None:
        print(f"{time.monotonic() - began_s:6.1f} s  {message}", flush=True)

    if (docker := machine_engine()) is not None:
        report("using the Docker engine of this machine")
        return run_tests(docker, arguments)
    lock = cache_folder() / "ecosystem.lock"
    with exclusive(lock, report=report):
        remove_when_released(lock)
        prepare(report)
        for phase, more in PHASES.items():
            report(f"phase: {phase}")
            inner = [sys.executable, "-m", "tests.ecosystem.phases", phase, *arguments]
            command = ["unshare", *NAMESPACES, *more, "--mount-proc", *inner]
            status = subprocess.run(with_parent_guard(command), check=False).returncode
            if status != 0:
                report(f"{phase} ended with status {status}")
                return status
    report("done")
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
