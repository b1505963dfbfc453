"""The Python files of this repository, for the tests that judge the source itself."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

# From the lowest to the highest; the ones that are not written yet have no files.
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


def module_name(path: Path) -> str:
    """Return the dotted name under which a file of the repository is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
