"""The budgets of length: a module or function over its budget is split, never excused."""

import ast
from collections.abc import Iterator

import pytest

from tests.repository import PACKAGES, ROOT, python_files

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
TEST_MODULE_LINES_MAX = 600  # tests are lists of cases, and read one at a time


def long_functions(source: str, lines_max: int) -> Iterator[tuple[str, int]]:
    """Yield (name, lines) of each function over lines_max, from its def to its last line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            lines = node.end_lineno - node.lineno + 1
            if lines > lines_max:
                yield node.name, lines


@pytest.mark.parametrize(
    ("folder", "lines_max"),
    [
        *((package, MODULE_LINES_MAX) for package in PACKAGES),
        ("benchmarks", MODULE_LINES_MAX),
        ("tests", TEST_MODULE_LINES_MAX),
    ],
)
def test_modules_stay_within_their_budget(folder: str, lines_max: int) -> None:
    """No module has more lines than one can keep in mind."""
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in python_files(folder)}

    over = {str(path.relative_to(ROOT)): n for path, n in lines.items() if n > lines_max}
    assert over == {}


@pytest.mark.parametrize("folder", [*PACKAGES, "benchmarks", "tests"])
def test_functions_stay_within_their_budget(folder: str) -> None:
    """No function is longer than a screen."""
    over = [
        f"{path.relative_to(ROOT)}: {name} has {lines} lines"
        for path in python_files(folder)
        for name, lines in long_functions(path.read_text("utf-8"), FUNCTION_LINES_MAX)
    ]

    assert over == []


def test_long_function_is_found() -> None:
    """Methods, nested and asynchronous functions count as well, blank lines included."""
    source = "class A:\n  async def f(self):\n    def g():\n      x = 1\n\n      return x\n"

    assert list(long_functions(source, 2)) == [("f", 5), ("g", 4)]
    assert list(long_functions(source, 5)) == []
