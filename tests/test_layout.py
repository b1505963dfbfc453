"""How the repository is laid out: no import circles, tests that stand alone."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.repository import PACKAGES, ROOT, module_name, python_files, source_of

# pytest collects these: imported, their tests or fixtures would run twice.
TEST_MODULES = ("test_", "conftest")
# Such a name outside `def test_`: only files with one can import such a module, and are parsed.
TEST_MODULE_IN_SOURCE = re.compile(rf"(?<!def )\b(?:{'|'.join(TEST_MODULES)})")


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of one circle of imports, [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


@cache
def import_graph() -> dict[str, set[str]]:
    """Module by module of all packages, the modules of ours that it imports."""
    files = {module_name(path): path for package in PACKAGES for path in python_files(package)}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = source_of(path).imports
        graph[module] = {_module_of(name, files) for name in names} & (files.keys() - {module})
    return graph


def _module_of(name: str, files: Mapping[str, object]) -> str:
    """The module that an imported name stands in: `a.b.c` may be module `a.b` and its name `c`."""
    return name if name in files else name.rpartition(".")[0]


def _folder_of(module: str) -> str:
    """The folder that a module lies in."""
    is_folder = ROOT.joinpath(*module.split(".")).is_dir()
    return module if is_folder else module.rpartition(".")[0]


def imports_of_test_modules() -> list[str]:
    """Imports, anywhere in tests and benchmarks, of a module that holds tests or fixtures."""
    found = []
    for path in python_files("tests", "benchmarks"):
        if not TEST_MODULE_IN_SOURCE.search(path.read_text("utf-8")):
            continue
        for name in sorted(source_of(path).imports):
            parts = name.split(".")
            if parts[0] == "tests" and any(part.startswith(TEST_MODULES) for part in parts[1:-1]):
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Modules can be read one after the other; imports inside functions count too."""
    assert circle_in(import_graph()) == []


def test_no_folder_imports_itself_by_way_of_others() -> None:
    """Folders can be read one after the other; one inside another counts as a part of it."""
    folders: dict[str, set[str]] = {}
    for module, imported in import_graph().items():
        folder = _folder_of(module)
        others = {_folder_of(each) for each in imported}
        folders.setdefault(folder, set()).update(
            other
            for other in others
            if not f"{other}.".startswith(f"{folder}.") and not f"{folder}.".startswith(f"{other}.")
        )

    assert circle_in(folders) == []


def test_a_circle_is_found() -> None:
    """The circle is named by its modules."""
    assert set(circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_test_modules_stand_alone() -> None:
    """What several test modules need stands in a module without tests."""
    assert imports_of_test_modules() == []
