"""What `python -m tests` makes of tests that fail."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from select import select

import pytest

from shardstream.local.processes import with_parent_guard
from tests.__main__ import RERUN_MAX
from tests.repository import ROOT

POLL_S = 0.05
# A killed process ends at once; this is for a busy machine.
ENDS_S_MAX = 60
# Fails at the first call in a folder, and passes from then on.
_AT_FIRST = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    ran = Path(f"ran-{{number}}")
    is_first = not ran.exists()
    ran.touch()
    assert not is_first, "at first"
"""
_ALWAYS = "def test_it():\n    assert False, 'always'\n"
_CRASH_AT_FIRST = """
import os
from pathlib import Path

def test_it():
    ran = Path("ran")
    if not ran.exists():
        ran.touch()
        os._exit(1)
"""
# What it does instead of failing again: it skips, or its failure is expected.
_OTHERWISE = """
from pathlib import Path
import pytest

def test_it():
    ran = Path("ran")
    if ran.exists():
        pytest.{otherwise}("now")
    ran.touch()
    assert False, "at first"
"""
# The second run waits for ever.
_WAIT_AGAIN = """
import os, signal
from pathlib import Path

def test_it():
    ran = Path("ran")
    if ran.exists():
        Path("pid.part").write_text(str(os.getpid()))
        Path("pid.part").rename("pid")
        signal.pause()
    ran.touch()
    assert False, "at first"
"""
_IT = "test_0.py::test_it"
_NO_MODULE = "import no_such_module\n"


@pytest.mark.parametrize(
    ("sources", "is_green", "ends"),
    [
        (
            [_AT_FIRST.format(count=1)],
            True,
            f"unsteady: 1\n  {_IT}[0]: AssertionError: at first\n",
        ),
        (
            [_CRASH_AT_FIRST, "def test_that(): pass"],
            True,
            f"unsteady: 1\n  {_IT}: worker 'gw0' crashed while running '{_IT}'\n",
        ),
        ([_AT_FIRST.format(count=RERUN_MAX + 1)], False, "unsteady: 0\n"),
        ([_ALWAYS], False, "unsteady: 0\n"),
        ([_OTHERWISE.format(otherwise="skip")], False, "unsteady: 0\n"),
        ([_OTHERWISE.format(otherwise="xfail")], False, "unsteady: 0\n"),
        ([_NO_MODULE], False, "unsteady: 0\n"),
        ([_AT_FIRST.format(count=1), _NO_MODULE], False, "unsteady: 0\n"),
    ],
    ids=["at first", "crash", "many", "always", "skip", "xfail", "not collected", "one of each"],
)
def test_what_fails_runs_once_more(
    tmp_path: Path, sources: list[str], ends: str, *, is_green: bool
) -> None:
    """A run is green only if the few tests that failed pass alone, and then it names them."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for number, source in enumerate(sources):
        (tmp_path / f"test_{number}.py").write_text(source)

    run = subprocess.run(
        [sys.executable, "-m", "tests", "--numprocesses", "1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode == 0) is is_green
    assert run.stdout.endswith(ends)


def test_a_run_that_is_ended_ends_its_second_run(tmp_path: Path) -> None:
    """CI ends a run that takes too long: nothing of it may go on."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_0.py").write_text(_WAIT_AGAIN)
    process = subprocess.Popen(
        with_parent_guard([sys.executable, "-m", "tests"]),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )
    try:
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            time.sleep(POLL_S)
        second = os.pidfd_open(int((tmp_path / "pid").read_text()))
    finally:
        process.terminate()
        process.wait()

    try:
        assert select([second], [], [], ENDS_S_MAX)[0] == [second]
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(second, signal.SIGKILL)
        os.close(second)
