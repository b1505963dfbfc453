"""Workers get units of tests until all have ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

CONFTEST = """
from tests.scheduling import LongestFirst

def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return LongestFirst(config, log)
"""
PASSES = "def test_it(): pass\ndef test_that(): pass\n"
CRASHES = "import os\ndef test_it(): os._exit(1)\n"
# The run of four tests takes seconds; this is for a busy machine.
RUN_S_MAX = 120


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("sources", "ends"),
    [
        ([PASSES, CRASHES], "1 failed, 2 passed"),
        ([PASSES, CRASHES + PASSES.replace("_it", "_more")], "1 failed, 4 passed"),
        ([CRASHES, CRASHES, PASSES], "2 failed, 2 passed"),
    ],
    ids=["last test", "last unit", "two"],
)
def test_a_worker_that_crashes_fails_one_test(
    tmp_path: Path, sources: list[str], ends: str, workers: int
) -> None:
    """The run ends, whichever unit a worker dies in, and all other tests have run."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number, source in enumerate(sources):
        (tmp_path / f"test_{number}.py").write_text(source)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--numprocesses", str(workers)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )

    assert ends in run.stdout.splitlines()[-1]
