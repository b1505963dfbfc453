"""How the repository is laid out: no import circles, tests that stand alone."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from tests.repository import PACKAGES, ROOT, imported_modules, module_name, python_files

# pytest collects these: imported, their tests or fixtures would run twice.
TEST_MODULES = ("test_", "conftest")


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of one circle of imports, [] if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def import_graph() -> dict[str, set[str]]:
    """Module by module of all packages, the modules of ours that it imports."""
    files = {module_name(path): path for package in PACKAGES for path in python_files(package)}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        names = imported_modules(
            module, path.read_text("utf-8"), is_package=path.name == "__init__.py"
        )
        graph[module] = {_module_of(name, files) for name in names} & (files.keys() - {module})
    return graph


def _module_of(name: str, files: Mapping[str, object]) -> str:
    """The module that an imported name stands in: `a.b.c` may be module `a.b` and its name `c`."""
    return name if name in files else name.rpartition(".")[0]


def imports_of_test_modules() -> list[str]:
    """Imports, anywhere in tests and benchmarks, of a module that holds tests or fixtures."""
    found = []
    for path in python_files("tests", "benchmarks"):
        for name in sorted(set(imported_modules(module_name(path), path.read_text("utf-8")))):
            parts = name.split(".")
            if parts[0] == "tests" and any(part.startswith(TEST_MODULES) for part in parts[1:-1]):
                found.append(f"{path.relative_to(ROOT)} imports {name}")
    return found


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Modules can be read one after the other; imports inside functions count too."""
    assert circle_in(import_graph()) == []


def test_a_circle_is_found() -> None:
    """The circle is named by its modules."""
    assert set(circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_test_modules_stand_alone() -> None:
    """What several test modules need stands in a module without tests."""
    assert imports_of_test_modules() == []
