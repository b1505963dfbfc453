"""The rooms of `topics` import one way, held against the source."""

import ast
from pathlib import Path

import pytest

from tests.repository import ROOT, module_name, python_files

# From the lowest to the highest: each may import those before it.
ROOMS = (
    *("names", "errors", "kafka", "records", "schemas", "keyspace", "progress", "reading"),
    *("readers", "start", "stream", "fleet"),
)


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a module imports, wherever in it the import stands."""
    modules = [
        name
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return {module.split(".")[1] for module in modules if module.startswith("topics.")}


@pytest.mark.parametrize("path", list(python_files("topics")), ids=module_name)
def test_rooms_import_one_way(path: Path) -> None:
    """A module imports its own room and the rooms below it."""
    room = path.relative_to(ROOT / "topics").with_suffix("").parts[0]
    allowed = ROOMS[: ROOMS.index(room) + 1] if room in ROOMS else ()

    assert sorted(rooms_imported(path) - set(allowed)) == []
