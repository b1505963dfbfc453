"""What `python -m tests` makes of tests that fail."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.__main__ import RERUN_MAX
from tests.repository import ROOT

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
        ([_NO_MODULE], False, "unsteady: 0\n"),
        ([_AT_FIRST.format(count=1), _NO_MODULE], False, "unsteady: 0\n"),
    ],
    ids=["at first", "crash", "many", "always", "not collected", "one of each"],
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
