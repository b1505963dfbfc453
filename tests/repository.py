"""The Python files of this repository and what they import, for the tests that read the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

# From the lowest to the highest.
PACKAGES = (
    "event_token",
    "databases",
    "topics",
    "producers",
    "resharding",
    "caching",
    "spark_consumers",
    "shardstream",
)


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files of these folders of the repository, in order of their names."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def pages() -> list[Path]:
    """Return the Markdown pages that readers see, sorted."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/*.md")])


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(module: str, source: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield the absolute names that source imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                package = module if is_package else module.rpartition(".")[0]
                for _ in range(level - 1):
                    package = package.rpartition(".")[0]
                prefix = ".".join(part for part in (package if level else "", base) if part)
                # `from topics import reading` imports topics.reading: each name counts.
                yield from (f"{prefix}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case _:
                pass
