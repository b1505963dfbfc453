"""Pytest plugin: a run is green only if each of its tests has passed, and none was skipped."""

import pytest

_passed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what has passed; a failure that was expected counts as skipped."""
    if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
        _passed.add(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let the run fail if one of its tests has not passed."""
    if exitstatus == pytest.ExitCode.OK and len(_passed) != session.testscollected:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were skipped."""
    for report in terminalreporter.getreports("skipped") + terminalreporter.getreports("xfailed"):
        terminalreporter.write_line(f"skipped, so it counts as failed: {report.nodeid}")
