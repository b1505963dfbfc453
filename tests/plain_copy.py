"""A copy of this checkout without compiled modules, for tests that need the plain sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.repository import PACKAGES, ROOT

# The slowest use, a test module with its own servers, takes about a minute.
TIMEOUT_S = 600


def copy_plain(folder: Path) -> Path:
    """Copy the packages, the tests and the settings into `folder`, leaving out compiled files."""
    for name in (*PACKAGES, "tests"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.so"))
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, folder)
    return folder


def run_python(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python on the packages in `root`; the caller checks the exit status.

    Options for this run of pytest may name plugins that `root` does not have.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""},
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
