"""The tables of faults and of guarantees agree with the tests about what shows which of them."""

import ast
import re
from collections import defaultdict
from pathlib import Path

from tests.repository import ROOT, gate_tests, python_files

FAULTS = ROOT / "docs/faults.md"
GUARANTEES = ROOT / "docs/architecture.md"
IDS = {f"F{number:02}" for number in range(1, 45)}
# More than a minute each: segments of three brokers that roll onto a full disk, and all parts of a
# system that are stopped and started.
NOT_IN_GATE = {"F08", "F39"}

_ROW = re.compile(r"^\| (F\d\d) \|.*\| ([^|]*)\|$", re.MULTILINE)
_GUARANTEE = re.compile(r"^\| ([A-Z].*\.) \| (`tests/[^|]*) \|$", re.MULTILINE)
# `(all)` behind a test: only `make test-all` runs it.
_TEST = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`( \(all\))?")
_FILE = re.compile(r"`(tests/[\w/.]+)`( \(all\))?")
_LABEL = re.compile(r"\bF\d\d\b")


def page_tests() -> dict[str, set[tuple[str, bool]]]:
    """The tests that the page names, by the fault's id, and whether `make test` runs them."""
    rows = _ROW.findall(FAULTS.read_text())
    return {
        fault: {(test, not is_full) for test, is_full in _TEST.findall(shown)}
        for fault, shown in rows
    }


def naming_tests() -> dict[str, set[tuple[str, bool]]]:
    """The tests that name faults in the first line of their docstrings, by the fault's id."""
    found: defaultdict[str, set[tuple[str, bool]]] = defaultdict(set)
    for path in python_files("tests"):
        source = path.read_text()
        # Parsed only where a fault is named at all: the tests have 100,000 lines.
        if not _LABEL.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                said, _, _ = (ast.get_docstring(node) or "").partition("\n")
                for fault in _LABEL.findall(said):
                    test = f"{path.relative_to(ROOT).as_posix()}::{node.name}"
                    found[fault].add((test, gate_tests(path)[node.name]))
    return found


def is_in_gate(place: Path) -> bool:
    """Tell whether `make test` runs a test of this file or folder."""
    files = sorted(place.rglob("test_*.py")) if place.is_dir() else [place]
    return any(any(gate_tests(file).values()) for file in files)


def test_each_fault_has_its_row() -> None:
    """All faults are listed in order, and each has a test in `make test`, but for two."""
    page = page_tests()

    assert list(page) == sorted(IDS)
    assert {fault for fault, tests in page.items() if not any(gate for _, gate in tests)} == (
        NOT_IN_GATE
    )


def test_the_page_names_the_tests_that_name_the_fault() -> None:
    """A test on the page exists and names the fault; a test that names a fault is on the page.

    What only `make test-all` runs is said to be so.
    """
    assert page_tests() == naming_tests()


def test_each_guarantee_is_shown_by_make_test() -> None:
    """Each guarantee names a file that `make test` runs tests of; what it leaves out is marked."""
    rows = _GUARANTEE.findall(GUARANTEES.read_text())
    wrong = [
        (said, file)
        for said, shown in rows
        for file, is_full in _FILE.findall(shown)
        if is_in_gate(ROOT / file) == bool(is_full)
    ]

    assert len(rows) > 60
    assert wrong == []
    assert [said for said, shown in rows if all(full for _, full in _FILE.findall(shown))] == []
