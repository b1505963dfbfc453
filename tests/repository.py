"""The Python files of this repository and what they import, for the tests that read the source."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

# From the lowest to the highest.
PACKAGES = (
    "event_token",
    "credentials",
    "databases",
    "topics",
    "producers",
    "resharding",
    "caching",
    "sinks",
    "spark_consumers",
    "shardstream",
)


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files of these folders of the repository, in order of their names."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def pages() -> list[Path]:
    """Return the Markdown pages that readers see, sorted."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md")])


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Source(NamedTuple):
    """What a module's source says about other modules, wherever in it that stands."""

    # Absolute names.
    imports: frozenset[str]
    # Strings other than docstrings.
    texts: frozenset[str]


@cache
def source_of(path: Path) -> Source:
    """Return what a file of the repository says; each is parsed once per process."""
    return parsed(module_name(path), path.read_text("utf-8"), is_package=path.name == "__init__.py")


def parsed(module: str, source: str, *, is_package: bool = False) -> Source:
    """Return what the source of a module says."""
    imports: set[str] = set()
    constants: dict[int, str] = {}
    docstrings: set[int] = set()
    # Held, because nodes are known by their ids.
    tree = ast.parse(source)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                imports.update(alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                package = module if is_package else module.rpartition(".")[0]
                for _ in range(level - 1):
                    package = package.rpartition(".")[0]
                prefix = ".".join(part for part in (package if level else "", base) if part)
                # `from topics import reading` imports topics.reading: each name counts.
                imports.update(f"{prefix}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                imports.add(name)
            case ast.Expr(value=ast.Constant() as docstring):
                docstrings.add(id(docstring))
            case ast.Constant(value=str(text)):
                constants[id(node)] = text
            case _:
                pass
    texts = frozenset(text for key, text in constants.items() if key not in docstrings)
    return Source(frozenset(imports), texts)


@cache
def gate_tests(path: Path) -> dict[str, bool]:
    """Return the names of a file's tests, and whether `make test` runs each: the mark `full`."""
    tree = ast.parse(path.read_text("utf-8"))
    found: dict[str, bool] = {}
    is_file_full = False
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) if name.startswith("test_"):
                marks = map(ast.unparse, node.decorator_list)
                found[name] = "pytest.mark.full" not in marks
            case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
                is_file_full = "pytest.mark.full" in ast.unparse(value)
            # A state machine of Hypothesis.
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                found[name] = True
    return {name: in_gate and not is_file_full for name, in_gate in found.items()}
