"""How the process of a command ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shardstream.command_line import command
from tests.waiting import WAIT_S

# It stands in for the standard library's: a command that reads its settings gets what ENDS says.
# Until then one of Arrow's threads is reading from a Python file, from which the next byte comes
# once Python is being torn down, if that happens.
READING_WHILE_IT_ENDS = """
import atexit, builtins, ctypes, os, threading
from pyarrow import csv

BLOCK = 1 << 16
BLOCKS_AHEAD = 6
READ, WRITE = os.pipe()

class TOMLDecodeError(ValueError):
    pass

class File:
    blocks, closed = 0, False
    def read(self, size=-1):
        self.blocks += 1
        if self.blocks < BLOCKS_AHEAD:
            return b"a\\n" * (BLOCK // 2)
        os.read(READ, 1)
        return b""

class LastObject:
    def __del__(self, listdir=os.listdir, write=os.write, number=WRITE):
        threads = listdir("/proc/self/task")
        write(number, b"x")
        while listdir("/proc/self/task") == threads:
            pass

def load(file):
    if ENDS == "SystemExit":
        atexit.register(print, "function", end="")
        threading.Thread(target=print, args=("thread",), kwargs={"end": " "}).start()
        raise SystemExit(0)
    raise getattr(builtins, ENDS, TOMLDecodeError)("as told")

loads = load
ENDS = os.environ["ENDS"]
reader = csv.open_csv(File(), read_options=csv.ReadOptions(block_size=BLOCK))
# It outlives Python, as what another of these threads holds.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(reader))
last = LastObject()
"""


@pytest.mark.parametrize(
    ("ends", "status", "output", "says"),
    [
        ("TOMLDecodeError", 2, "", "is not TOML: as told"),
        ("RuntimeError", 1, "", "RuntimeError: as told"),
        ("KeyboardInterrupt", 130, "", ""),
        ("SystemExit", 0, "thread function", ""),
    ],
)
def test_threads_of_libraries_do_not_change_how_a_command_ends(
    tmp_path: Path, ends: str, status: int, output: str, says: str
) -> None:
    """A thread of Arrow that calls Python after the end aborts nothing; output is complete."""
    (tmp_path / "tomllib.py").write_text(READING_WHILE_IT_ENDS)
    config = tmp_path / "shardstream.toml"
    config.touch()
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]

    run = subprocess.run(
        command("status", "shop", "--config", str(config)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "ENDS": ends},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert (run.returncode, run.stdout) == (status, output), run.stderr
    assert says in run.stderr


def test_output_that_cannot_be_written_is_no_success() -> None:
    """A command whose last words find the disk full does not end with 0."""
    program = "from shardstream.process_end import ends_process\nwith ends_process(): print('rows')"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (run.returncode, run.stderr) == (
        1,
        "error: output could not be written: No space left on device\n",
    )
