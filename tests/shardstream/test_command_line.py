"""Commands of the tests are processes like those of a shell."""

import os
import signal
from pathlib import Path

import pytest

from tests.shardstream.command_line import background, run

pytestmark = pytest.mark.usefixtures("real_servers")


def test_status_output_folder_and_environment_are_the_command_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command reads its caller's folder and variables as they are when it starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDSTREAM_CONFIG", "named.toml")

    done = run("status")

    assert (done.returncode, done.stdout) == (2, "")
    assert "no settings file named.toml" in done.stderr


def test_a_killed_command_is_told_by_its_signal(tmp_path: Path) -> None:
    """Its status is that of a process which was killed, and nothing of it is left."""
    config = tmp_path / "shardstream.toml"
    os.mkfifo(config)  # read until somebody writes: never
    with background(tmp_path, "held", "serve", "--config", str(config)) as held:
        assert held.process.poll() is None
        held.process.kill()
        assert held.wait_end() == -signal.SIGKILL
