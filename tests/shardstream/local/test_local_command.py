"""`shardstream local` as a user runs it."""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
from confluent_kafka.admin import AdminClient
from pymemcache import Client
from redis import Redis

from shardstream.local.processes import command_line, with_parent_guard
from tests.shardstream.command_line import run
from tests.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.usefixtures("real_servers")

ROOT = Path(__file__).parents[3]
LOCAL = [sys.executable, "-m", "shardstream", "local"]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _at_a_terminal(*arguments: str, cwd: Path, prompt: str, given: Sequence[str]) -> str:
    """Run a command at a terminal, type the next text at each prompt, return what it shows."""
    master, terminal = pty.openpty()
    with subprocess.Popen(
        with_parent_guard([*LOCAL, *arguments]),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=cwd,
        env=_environment(),
        start_new_session=True,
    ) as process:
        os.close(terminal)
        shown, rest = b"", deque(given)
        # Linux reports the end of a terminal as an error.
        with suppress(OSError):
            while select.select([master], [], [], WAIT_S)[0]:
                shown += os.read(master, 65536)
                if rest and shown.endswith(prompt.encode()):
                    os.write(master, rest.popleft().encode())
        os.close(master)
        assert not rest, shown
        assert process.wait(WAIT_S) == 0
    return shown.decode()


def _run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    with chdir(cwd):
        return run("local", *arguments)


def _facts(*arguments: str, cwd: Path) -> dict[str, Any]:
    done = _run(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert isinstance(facts, dict)
    return facts


def _pids(facts: dict[str, Any]) -> list[int]:
    servers = (*facts["databases"], *facts["brokers"], *facts["caches"])
    return [server["pid"] for server in servers]


@contextmanager
def _started(
    arguments: list[str], *, cwd: Path
) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """Run a command for the length of a block; yield the file with its output, and the process."""
    output = cwd / f"{arguments[0]}.log"
    with output.open("wb") as log:
        process = subprocess.Popen(
            with_parent_guard([sys.executable, "-m", "shardstream", *arguments]),
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=_environment(),
        )
    try:
        yield output, process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty current folder; whatever a test left running there is stopped."""
    yield tmp_path
    _down(tmp_path)


@pytest.fixture(scope="module")
def stack_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A current folder with a stack that tests share; each begins with `up`."""
    folder = tmp_path_factory.mktemp("stack")
    yield folder
    _down(folder)


def _down(folder: Path) -> None:
    if (folder / ".local" / "stack.json").exists():
        assert _run("down", cwd=folder).returncode == 0


@pytest.mark.full
def test_up_status_down_up(stack_folder: Path) -> None:
    """A stack serves, is found again, stops wholly, and comes back with its data and ports."""
    first = _facts("up", "--mariadb", "2", cwd=stack_folder)

    database = first["databases"][0]
    password = Path(database["password_file"]).read_text().strip()
    with pymysql.connect(
        host=database["host"], port=database["port"], user=database["user"], password=password
    ) as connection:
        assert connection.get_server_info().endswith("MariaDB-log")
    with pymysql.connect(unix_socket=database["socket"], user="root") as connection:
        connection.cursor().execute("CREATE DATABASE kept")
    metadata = AdminClient({"bootstrap.servers": first["bootstrap_servers"]}).list_topics(
        timeout=30
    )
    assert list(metadata.brokers) == [1]
    assert _facts("up", cwd=stack_folder) == first
    assert "already running" in _run("up", cwd=stack_folder).stdout
    assert _facts("status", cwd=stack_folder) == first

    stopped = _facts("down", cwd=stack_folder)
    assert not stopped["running"]
    assert all(command_line(pid) == "" for pid in _pids(first))
    assert "already stopped" in _run("down", cwd=stack_folder).stdout

    second = _facts("up", cwd=stack_folder)
    assert second["running"]
    assert second["databases"][0]["port"] == database["port"]
    assert second["bootstrap_servers"] == first["bootstrap_servers"]
    with pymysql.connect(unix_socket=database["socket"], user="root", database="kept"):
        pass


def test_cache_servers_are_added_to_a_stack(stack_folder: Path) -> None:
    """`up --redis --memcached` starts what is missing, and later calls keep it."""
    before = _facts("up", "--mariadb", "2", cwd=stack_folder)
    assert before["caches"] == []

    after = _facts("up", "--redis", "--memcached", cwd=stack_folder)

    assert after["databases"] == before["databases"]
    redis, memcached = after["caches"]
    assert Redis.from_url(redis["url"]).ping() is True
    host, _, port = memcached["url"].removeprefix("memcached://").partition(":")
    assert Client((host, int(port))).version()
    assert _facts("up", cwd=stack_folder) == after
    assert redis["url"] in _run("status", cwd=stack_folder).stdout
    _facts("down", cwd=stack_folder)
    assert all(command_line(pid) == "" for pid in _pids(after))


@pytest.mark.full
def test_next_commands_that_up_prints(stack_folder: Path) -> None:
    """C5: `up` prints three commands; they find its settings, and show a row in the stream.

    The first one runs the producers of all shards, and ends them with it.
    """
    printed = _run("up", "--mariadb", "2", cwd=stack_folder).stdout
    _, _, next_lines = printed.partition("next, each in a separate terminal:\n")
    produce, tail, sql = (shlex.split(line)[1:] for line in next_lines.splitlines())

    shards = ("commerce/-80: streaming", "commerce/80-: streaming")
    with _started(produce, cwd=stack_folder) as (produced, producing):
        wait_for(
            "both stream",
            lambda: all(each in produced.read_text() for each in shards),
            produced.read_text,
            producing,
        )
        done = _run(*sql[1:], cwd=stack_folder)
        assert done.returncode == 0, done.stderr
        with _started(tail, cwd=stack_folder) as (events, reading):
            wait_for(
                "the row",
                lambda: "INSERT shop.orders" in events.read_text(),
                events.read_text,
                reading,
            )
        producing.terminate()
        assert producing.wait(WAIT_S) == 0
    for shard in shards:
        assert shard.replace("streaming", "stopped") in produced.read_text()

    shown = _run("sql", "-80", "-e", "SELECT id + 41 FROM shop.orders", cwd=stack_folder)
    assert "42" in shown.stdout
    refused = _run("sql", "-80", "-e", "SELECT nothing", cwd=stack_folder)
    assert (refused.returncode, "Unknown column" in refused.stderr) == (2, True)
    assert "its shards: -80, 80-" in _run("sql", "-", "-e", "SELECT 1", cwd=stack_folder).stderr
    piped = subprocess.run(
        [*LOCAL, "sql", "-80"],
        input="SELECT id + 41\nFROM shop.orders;",
        capture_output=True,
        text=True,
        check=False,
        cwd=stack_folder,
        env=_environment(),
        timeout=WAIT_S,
    )
    assert "42" in piped.stdout
    asked = ["SELECT nothing;\n", "SELECT id + 41\nFROM shop.orders;\n", "\x04"]
    typed = _at_a_terminal("sql", "-80", cwd=stack_folder, prompt="commerce/-80> ", given=asked)
    assert "Unknown column" in typed
    assert "42" in typed


def test_dead_server_comes_back_alone(stack_folder: Path) -> None:
    """`up` on a stack that lost a server starts that one and leaves the rest alone."""
    before = _facts("up", "--mariadb", "2", cwd=stack_folder)
    database_pid = before["databases"][0]["pid"]
    os.kill(database_pid, signal.SIGKILL)
    # A killed server is there until its last thread has ended.
    wait_for(
        "it is seen to be gone",
        lambda: "partly running" in _run("status", cwd=stack_folder).stdout,
    )

    after = _facts("up", cwd=stack_folder)

    assert after["running"]
    assert after["brokers"] == before["brokers"]
    assert after["databases"][0]["pid"] != database_pid


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "starting"),
        (signal.SIGTERM, "serving"),
        (signal.SIGKILL, "serving"),
    ],
)
def test_stack_in_the_foreground_ends_with_its_command(
    folder: Path, number: signal.Signals, moment: str
) -> None:
    """However and whenever the command ends, no server stays behind."""
    command = subprocess.Popen(
        [*LOCAL, "up", "--mariadb", "1", "--foreground", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=folder,
        env=_environment(),
    )
    assert command.stdout is not None
    # The database is launched first, Kafka comes up behind it.
    pid_file = folder / ".local" / "shard_-" / "server.pid"
    wait_for(
        "the database is launched",
        lambda: pid_file.exists() and pid_file.read_text().endswith("\n"),
        process=command,
    )
    pids = [int(pid_file.read_text().split()[0])]
    if moment == "serving":
        while (line := command.stdout.readline()) != "}\n":
            assert line
        pids = _pids(_facts("status", cwd=folder))

    command.send_signal(number)
    command.communicate(timeout=WAIT_S)

    wait_for("all are gone", lambda: all(command_line(pid) == "" for pid in pids))
    wait_for("status says so", lambda: not any(_pids(_facts("status", cwd=folder))))


def test_servers_are_fetched_ahead(folder: Path) -> None:
    """C5: `fetch` leaves what `up` would download, and starts nothing."""
    done = _run("fetch", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert "can be started without a download" in done.stdout
    assert list(folder.iterdir()) == []


def test_wrong_use_is_one_line(folder: Path) -> None:
    """Bad options end with status 2 and a message that says what to do, without a traceback."""
    for arguments, expected in (
        (("status",), "`shardstream local up` creates one"),
        (("up", "--mysql", "1", "--mariadb", "1"), "not both"),
        (("up", "--mariadb", "1", "--brokers", "2"), "1 or 3 brokers, not 2"),
    ):
        done = _run(*arguments, cwd=folder)

        assert done.returncode == 2
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
