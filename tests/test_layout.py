"""How the repository is laid out: small folders, no import circles, tests that stand alone."""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from tests.repository import PACKAGES, module_name, python_files
from tests.test_rules import imported_modules

# More than a reader takes in at a glance; a fuller folder holds two concerns.
FOLDER_MODULES_MAX = 16


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
        graph[module] = {_module_of(name, files) for name in names} & files.keys() - {module}
    return graph


def _module_of(name: str, files: Mapping[str, object]) -> str:
    """The module that an imported name stands in: `a.b.c` may be module `a.b` and its name `c`."""
    return name if name in files else name.rpartition(".")[0]
