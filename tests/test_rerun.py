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
_NO_MODULE = "import no_such_module\n"


@pytest.mark.parametrize(
    ("source", "status", "ends"),
    [
        (
            _AT_FIRST.format(count=1),
            pytest.ExitCode.OK,
            "unsteady: 1\n  test_it.py::test_it[0]: AssertionError: at first\n",
        ),
        (_AT_FIRST.format(count=RERUN_MAX + 1), pytest.ExitCode.TESTS_FAILED, "unsteady: 0\n"),
        (_ALWAYS, pytest.ExitCode.TESTS_FAILED, "unsteady: 0\n"),
        (_NO_MODULE, pytest.ExitCode.INTERRUPTED, "unsteady: 0\n"),
    ],
    ids=["at first", "many", "always", "not collected"],
)
def test_what_fails_runs_once_more(
    tmp_path: Path, source: str, status: pytest.ExitCode, ends: str
) -> None:
    """A run is green only if the few tests that failed pass alone, and then it names them."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(source)

    run = subprocess.run(
        [sys.executable, "-m", "tests", "test_it.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (status, "")
    assert run.stdout.endswith(ends)
