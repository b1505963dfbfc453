"""`shardstream tail` where no broker answers: one sentence soon, and Ctrl-C at any moment."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shardstream.command_line import background, run
from tests.waiting import WAIT_S

SHARD = """
[keyspaces.shop.shards."-"]
flavor = "mysql"
servers = [{host = "db-a", user = "shardstream"}]
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers, as a frozen broker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        yield server


def _settings(folder: Path, server: socket.socket) -> str:
    path = folder / "shardstream.toml"
    host, port = server.getsockname()
    path.write_text(f'[kafka]\nbootstrap_servers = "{host}:{port}"\n{SHARD}')
    return str(path)


@pytest.mark.full
def test_brokers_that_do_not_answer_are_named(tmp_path: Path, silent: socket.socket) -> None:
    """C2: `tail` ends with one sentence and the brokers' addresses, not with a client's code."""
    settings = _settings(tmp_path, silent)

    done = run("tail", "shop", "--config", settings)

    host, port = silent.getsockname()
    assert done.returncode == 1
    assert f"no Kafka broker answered at {host}:{port} within 10 s" in done.stderr
    assert "Traceback" not in done.stderr
    assert "_ALL_BROKERS_DOWN" not in done.stderr


def test_ctrl_c_ends_a_tail_that_waits_for_brokers(tmp_path: Path, silent: socket.socket) -> None:
    """C2: Ctrl-C ends the command at once, before it has given up on the brokers."""
    arguments = ("tail", "shop", "--config", _settings(tmp_path, silent))
    with background(tmp_path, "interrupted", *arguments) as interrupted:
        connection, _ = silent.accept()
        with connection, background(tmp_path, "patient", *arguments) as patient:
            interrupted.process.send_signal(signal.SIGINT)
            status = interrupted.wait_end()
            is_first = patient.process.poll() is None

    assert (status, interrupted.errors) == (130, "")
    assert is_first
