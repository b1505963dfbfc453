"""Signals at moments that are easy to miss."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardstream.local.processes import with_parent_guard
from tests.shardstream.command_line import command
from tests.waiting import WAIT_S, wait_for

# It stands in for the standard library's, and holds a command where it reads its settings.
WAITING_MODULE = """
import os, signal
open(os.environ["REACHED"], "w").close()
while True:
    signal.pause()
"""

# As if the signal came while `wait` looks at the event.
SIGNAL_INSIDE_WAIT = """
import signal
from shardstream.stop_signals import stop_on_signals
stop = stop_on_signals()
with stop._cond:
    signal.raise_signal(signal.SIGTERM)
stop.wait()
"""


@pytest.mark.parametrize(
    ("arguments", "number", "status"),
    [
        (("produce", "shop", "-80"), signal.SIGINT, 0),
        (("changelog", "shop", "--target", "log"), signal.SIGTERM, 0),
        (("reshard", "run", "shop", "r1", "-40"), signal.SIGINT, 0),
        (("serve",), signal.SIGTERM, 0),
        (("tail", "shop"), signal.SIGINT, 130),
    ],
)
def test_an_early_signal_ends_a_command_as_a_later_one_does(
    tmp_path: Path, arguments: tuple[str, ...], number: signal.Signals, status: int
) -> None:
    """B21: a supervisor that stops a producer while it starts does not see a failure."""
    config, reached = tmp_path / "shardstream.toml", tmp_path / "reached"
    config.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:1"\n')
    (tmp_path / "tomllib.py").write_text(WAITING_MODULE)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        with_parent_guard(command(*arguments, "--config", str(config))),
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "REACHED": str(reached)},
    )
    try:
        wait_for("it reads its settings", reached.exists, process=process)
        process.send_signal(number)
        errors = process.communicate(timeout=WAIT_S)[1]
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, "Traceback" in errors) == (status, False), errors


def test_a_signal_while_the_stop_is_looked_at_is_not_lost() -> None:
    """B21: the command neither hangs nor goes on."""
    program = [sys.executable, "-c", SIGNAL_INSIDE_WAIT]

    assert subprocess.run(program, check=False, timeout=WAIT_S).returncode == 0
