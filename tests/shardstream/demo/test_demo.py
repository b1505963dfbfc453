"""`shardstream demo`: its proof holds, and Ctrl-C leaves nothing behind."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.shardstream.command_line import command
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("real_servers")

# The demo by itself takes a minute; this is for a busy machine.
DEMO_S_MAX = 600


def _descendants(root: int) -> set[int]:
    """Return all descendants of a process, as the kernel reports them."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.name)] = int(parent)
    found: set[int] = set()
    while new := {pid for pid, parent in parents.items() if parent in found | {root}} - found:
        found |= new
    return found


def _still_there(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists() and not _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    ("options", "database"),
    [
        pytest.param((), "database: ", id="default"),
        pytest.param(("--mariadb",), "database: MariaDB", id="MariaDB", marks=pytest.mark.full),
    ],
)
def test_the_demo_proves_its_result(
    tmp_path: Path, options: tuple[str, ...], database: str
) -> None:
    """C10: status 0, and the last line counts changes and nothing wrong.

    In between a shard is split: the consumers go on in the new ones, and hold what the databases
    hold. The printed queries run.
    """
    folder = tmp_path / "demo"
    done = subprocess.run(
        command("demo", "--seconds", "5", "--folder", str(folder), *options),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_S_MAX,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert database in done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"demo: [1-9]\d+ changes, 0 lost, 0 repeated, 0 out of order", last)
    found = " ".join(done.stdout.split())
    for consumer in ("change log", "current state", "second database"):
        assert f" 0 different in the {consumer}" in found
    log, state = (
        subprocess.run(command("query", *query), capture_output=True, text=True, check=True)
        for query in re.findall(r"shardstream query (\S+) '(.*)'", done.stdout)
    )
    assert "order_items" in log.stdout
    assert "paid" in state.stdout
    assert re.search(r"switched: writes were stopped for \d+ ms", done.stdout)
    assert "3 databases (-80, 80-c0, c0-)" in found
    assert {"-80", "80-", "80-c0", "c0-"} <= set(log.stdout.split())


@pytest.mark.parametrize(
    ("options", "moment"),
    [
        pytest.param((), "starting Kafka", id="starts"),
        pytest.param(
            ("--mariadb",),
            "switched: writes were stopped",
            id="splits MariaDB",
            marks=pytest.mark.full,
        ),
    ],
)
def test_ctrl_c_leaves_no_process(tmp_path: Path, options: tuple[str, ...], moment: str) -> None:
    """Interrupted while servers start, and at the end of the split: all processes are gone.

    The split succeeds on MariaDB, too.
    """
    output = tmp_path / "output"
    with output.open("wb") as out:
        demo = subprocess.Popen(
            command("demo", "--seconds", "5", "--folder", str(tmp_path / "demo"), *options),
            stdout=out,
            stderr=out,
        )
        wait_for(moment, lambda: moment in output.read_text(), output.read_text, demo)
        below = _descendants(demo.pid)
        os.kill(demo.pid, signal.SIGINT)
        status = demo.wait(DEMO_S_MAX)

    assert below
    assert f"database: {'MariaDB' if options else ''}" in output.read_text()
    assert status == 130, output.read_text()
    wait_for("all are gone", lambda: not _still_there(below), lambda: _still_there(below))
