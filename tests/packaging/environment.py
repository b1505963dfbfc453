"""Virtual environments that hold an installed wheel and what it declares to need, nothing else."""

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Compiling takes a minute and a half on a free processor.
BUILD_S_MAX = 1200
# All commands of the package, one after the other, on a busy machine.
COMMAND_S_MAX = 600


def checked(*command: object, cwd: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that has to succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=BUILD_S_MAX,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def requirements_of(found: Distribution, extra: str = "") -> list[str]:
    """Return the names of the distributions that one needs here, with one of its extras or none."""
    declared = [Requirement(text) for text in found.requires or ()]
    return [
        requirement.name
        for requirement in declared
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
    ]


def link_distributions(names: Iterable[str], folder: Path) -> None:
    """Link distributions of this environment, with all that they need, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    done: set[str] = set()
    todo = list(names)
    while todo:
        name = str(canonicalize_name(todo.pop()))
        if name in done:
            continue
        done.add(name)
        found = distribution(name)
        todo += requirements_of(found)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            source, target = Path(str(found.locate_file(top))), folder / top
            if source.exists() and not target.exists():
                target.symlink_to(source)


class Installation:
    """A wheel in a virtual environment, run from an empty folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.bin = folder / "venv" / "bin"
        checked(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        checked(*pip, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
        [self.site] = folder.glob("venv/lib/python*/site-packages")
        [info] = self.site.glob("shardstream-*.dist-info")
        needed = requirements_of(Distribution.at(info))
        link_distributions(needed, folder / "declared")
        (self.site / "declared.pth").write_text(f"{folder / 'declared'}\n")

    def run(
        self, *arguments: object, program: str = "shardstream", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment; the caller checks the exit status."""
        plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [self.bin / program, *map(str, arguments)],
            cwd=self.work,
            env={**plain, **environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
        )
