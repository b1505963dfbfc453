"""Faulty installations are reported at the start, in one line that says what to do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardstream.installation import PACKAGES
from tests.plain_copy import copy_plain, run_python
from tests.repository import PACKAGES as ALL_PACKAGES
from tests.repository import ROOT

TIMEOUT_S = 120


def run_elsewhere(
    folder: Path, *path: Path, arguments: tuple[str, ...]
) -> "subprocess.CompletedProcess[str]":
    """Run Python in `folder` with `path` in front of sys.path."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture(params=["folder", "module"])
def foreign_topics(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a package, or a module, that somebody else called `topics`."""
    folder = tmp_path / "foreign"
    path = folder / ("topics/__init__.py" if request.param == "folder" else "topics.py")
    path.parent.mkdir(parents=True)
    path.write_text("SPORTS = 1\n")
    return path


@pytest.mark.parametrize("command", [("version",), ("preflight",), ("tail", "commerce")])
def test_a_command_names_the_foreign_package(
    foreign_topics: Path, command: tuple[str, ...]
) -> None:
    """A foreign `topics` in front of ours ends every command with one line that names both."""
    folder = foreign_topics.parents[0 if foreign_topics.name == "topics.py" else 1]

    done = run_elsewhere(folder, folder, ROOT, arguments=("-m", "shardstream", *command))

    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: another package called 'topics' hides")
    assert str(foreign_topics) in line
    assert str(ROOT / "topics") in line


def test_a_public_name_is_refused_as_well(foreign_topics: Path) -> None:
    """An application gets an ImportError with the same sentence."""
    folder = foreign_topics.parents[0 if foreign_topics.name == "topics.py" else 1]

    done = run_elsewhere(folder, folder, ROOT, arguments=("-c", "from shardstream import VEvent"))

    assert done.returncode == 1
    assert "HiddenPackageError: another package called 'topics' hides" in done.stderr


def test_every_package_is_checked() -> None:
    """The list of packages to check is complete."""
    shipped = {name for name in ALL_PACKAGES if (ROOT / name).is_dir()}

    assert set(PACKAGES) == shipped - {"shardstream"}


def test_the_version_says_when_it_runs_plain(tmp_path: Path) -> None:
    """`shardstream version` tells a plain installation from a compiled one."""
    said = run_python(copy_plain(tmp_path), "-m", "shardstream", "version").stdout

    assert "plain Python" in said


def test_commands_are_found_without_the_extras() -> None:
    """A producer needs neither Spark nor the libraries of sinks and pages to start."""
    extras = ("pyspark", "pyarrow", "deltalake", "sqlalchemy", "psycopg", "starlette", "redis")
    program = (
        f"import sys; sys.modules |= dict.fromkeys({extras!r}); import shardstream.commands.app"
    )

    done = run_python(ROOT, "-c", program)

    assert done.returncode == 0, done.stderr
