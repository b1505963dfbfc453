"""Run pytest; tests that failed are run once more after the others, alone and in a new process.

python -m tests [OPTIONS AND PATHS OF PYTEST]

A test that passes then failed for what ran beside it or before it: the run is green, and its last
lines name it with its error, because its cause is still to be found. The run is red if a test fails
again or is skipped. Nothing is run again if more than `RERUN_MAX` tests failed, which probably have
one cause, or if anything else went wrong, such as a file that cannot be imported.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardstream.local.processes import with_parent_guard

RERUN_MAX = 5


class FailedTests:
    """Pytest plugin: the first line of the error of each test that failed, by its id.

    `are_all`: every test that was collected has ended, and nothing failed that is not a test.
    `root`: the folder that ids begin at.
    """

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}
        self.are_all = False
        self.root = Path()
        self._ended: set[str] = set()
        self._failures = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the first error of a test: that of its teardown may follow from it."""
        if report.when not in ("setup", "call"):  # its teardown, or the crash of its worker
            self._ended.add(report.nodeid)
        if report.failed:
            self._failures += 1
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message if crash else str(report.longrepr)
            self.errors.setdefault(report.nodeid, next(iter(message.splitlines()), ""))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare with what pytest has counted, collection included."""
        counted = session.testscollected, session.testsfailed
        self.are_all = (len(self._ended), self._failures) == counted
        self.root = session.config.rootpath


def main(arguments: list[str]) -> int:
    """Run pytest with these arguments; return the exit status of the whole run."""
    began_s = time.monotonic()
    failed = FailedTests()
    status = int(pytest.main(arguments, plugins=[failed]))
    unsteady: dict[str, str] = {}
    is_again = status == pytest.ExitCode.TESTS_FAILED and failed.are_all
    if is_again and 0 < len(failed.errors) <= RERUN_MAX:
        print(f"\n{len(failed.errors)} failed: once more, alone", flush=True)
        # `-m ""`: an id names one test, whatever its marks.
        run = (sys.executable, "-m", "pytest", "-p", "tests.must_pass", "-m", "", *failed.errors)
        # Whoever ends this process, as CI does after some time, ends that run too.
        status = subprocess.run(with_parent_guard(run), check=False, cwd=failed.root).returncode
        if status == pytest.ExitCode.OK:
            unsteady = failed.errors
    print(f"\n{_spent(began_s)}\nunsteady: {len(unsteady)}")
    for test, error in unsteady.items():
        print(f"  {test}: {error}")
    return status


def _spent(began_s: float) -> str:
    """Say how long the run took, and the processor time of it and of what it waited for."""
    wall_s = time.monotonic() - began_s
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    return f"took {wall_s / 60:.1f} min, {cpu_s / 60:.1f} CPU min"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
