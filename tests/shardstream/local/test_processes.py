"""Server processes: found again, never confused, reliably stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from event_token import Halt
from shardstream.local.local_server import free_ports, is_free
from shardstream.local.processes import ServerProcess, command_line
from tests.waiting import WAIT_S, wait_for

ROOT = Path(__file__).parents[3]

# A parent with a server of its own; the server is started from a thread that ends at once.
PARENT = """
import sys, threading, time
from pathlib import Path
from shardstream.local.processes import ServerProcess

folder = Path(sys.argv[1])
server = ServerProcess("sleeper", folder, die_with_parent=True)
starter = threading.Thread(target=server.launch, args=(["tail", "-f", f"{folder}/file"],))
starter.start()
starter.join()
print(server.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ServerProcess]:
    """Start a process that never ends."""
    (tmp_path / "file").touch()
    server = ServerProcess("sleeper", tmp_path, die_with_parent=True)
    yield server
    server.kill()


def _command(folder: Path) -> list[str]:
    return ["tail", "-f", f"{folder}/file"]


def test_killed_parent_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL on the parent ends the server, also one started by a thread that is long gone."""
    (tmp_path / "file").touch()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for("tail runs", lambda: command_line(pid).startswith("tail"))

    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=WAIT_S)

    wait_for("tail is gone", lambda: command_line(pid) == "")


def test_server_is_found_again_by_its_folder(sleeper: ServerProcess, tmp_path: Path) -> None:
    """Another object for the same folder sees the process and can end it."""
    sleeper.launch(_command(tmp_path))
    again = ServerProcess("sleeper", tmp_path, die_with_parent=False)

    assert again.pid == sleeper.pid
    again.stop()
    assert again.pid is None
    assert sleeper.pid is None


def test_second_launch_is_refused(sleeper: ServerProcess, tmp_path: Path) -> None:
    """Two servers never share a folder."""
    sleeper.launch(_command(tmp_path))

    with pytest.raises(Halt, match="already running"):
        ServerProcess("sleeper", tmp_path, die_with_parent=False).launch(_command(tmp_path))


@pytest.mark.parametrize("mark", ["", " 1"])
def test_pid_of_another_process_is_left_alone(tmp_path: Path, mark: str) -> None:
    """A pid file whose pid now belongs to another process is ignored."""
    (tmp_path / "server.pid").write_text(f"{os.getpid()}{mark}\n")
    server = ServerProcess("sleeper", tmp_path, die_with_parent=False)

    server.kill()

    assert server.pid is None


def test_reused_pid_with_a_like_command_is_left_alone(
    sleeper: ServerProcess, tmp_path: Path
) -> None:
    """A later process that names the folder too, with the pid of the server, is not the server."""
    sleeper.launch(_command(tmp_path))
    (tmp_path / "server.pid").write_text(f"{sleeper.pid} 1\n")

    ServerProcess("sleeper", tmp_path, die_with_parent=False).kill()

    assert sleeper.pid is not None


def test_stubborn_server_is_killed(sleeper: ServerProcess, tmp_path: Path) -> None:
    """A server that ignores SIGTERM is killed after the timeout."""
    deaf = f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.1; done"
    sleeper.launch(["sh", "-c", deaf])
    wait_for("it ignores signals", (tmp_path / "deaf").exists)

    sleeper.stop(timeout_s=0.2)

    assert sleeper.pid is None


def test_failed_start_shows_the_log(sleeper: ServerProcess, tmp_path: Path) -> None:
    """The error of a server that ended contains its status and its last output."""
    sleeper.launch(["sh", "-c", f"echo no such {tmp_path}/thing; exit 7"])
    wait_for("it has ended", lambda: sleeper.pid is None)

    with pytest.raises(Halt, match=r"status 7(.|\n)*no such"):
        sleeper.check_alive()


def test_free_ports_are_free_and_different() -> None:
    """Ports picked together are distinct."""
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
