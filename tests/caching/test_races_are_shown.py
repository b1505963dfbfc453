"""Each race and hole that the protocol closes is shown by a test that names it."""

import ast
import re

from tests.repository import ROOT, python_files

RACES = [f"R{number:02}" for number in range(1, 29)]
# H9 and H11 are those of the reader: isolation, and the time of a read.
HOLES = [f"H{number}" for number in range(1, 13) if number not in (9, 11)]


def ids_of_tests() -> set[str]:
    """The ids at the beginnings of the docstrings of tests."""
    found: set[str] = set()
    for path in python_files("tests/caching"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                ids, separator, _ = (ast.get_docstring(node) or "").partition(": ")
                if separator:
                    found |= set(re.findall(r"\b[RH]\d+\b", ids))
    return found


def test_each_race_has_its_test() -> None:
    """A docstring begins with the ids of the races that its test shows."""
    assert (ROOT / "tests/caching").is_dir()
    assert sorted({*RACES, *HOLES} - ids_of_tests()) == []
