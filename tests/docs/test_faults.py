"""docs/faults.md and the tests agree about which test shows which fault."""

import ast
import re
from collections import defaultdict

from tests.repository import ROOT, python_files

PAGE = ROOT / "docs/faults.md"
IDS = {f"F{number:02}" for number in range(1, 44)}

_ROW = re.compile(r"^\| (F\d\d) \|.*\| ([^|]*)\|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/[\w/]+\.py::test_\w+)`")
_LABEL = re.compile(r"\bF\d\d\b")


def page_tests() -> dict[str, set[str]]:
    """The tests that the page names, by the fault's id."""
    return {fault: set(_TEST.findall(shown)) for fault, shown in _ROW.findall(PAGE.read_text())}


def naming_tests() -> dict[str, set[str]]:
    """The tests that name faults in the first line of their docstrings, by the fault's id."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in python_files("tests"):
        source = path.read_text()
        # Parsed only where a fault is named at all: the tests have 100,000 lines.
        if not _LABEL.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                said, _, _ = (ast.get_docstring(node) or "").partition("\n")
                for fault in _LABEL.findall(said):
                    found[fault].add(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return found


def test_each_fault_has_its_row() -> None:
    """All faults are listed in order, and each has a test."""
    page = page_tests()

    assert list(page) == sorted(IDS)
    assert [fault for fault, tests in page.items() if not tests] == []


def test_the_page_names_the_tests_that_name_the_fault() -> None:
    """A test on the page exists and names the fault; a test that names a fault is on the page."""
    assert page_tests() == naming_tests()
