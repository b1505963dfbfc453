"""Starts the Python workers of a local Spark with PySpark as it is installed.

Spark puts the archive `pyspark.zip` in front of all that a worker imports. It has no bytecode, so
each worker would compile a hundred modules: half of what its start takes.
"""

import os
import sys
from pathlib import Path
from typing import Final

ARCHIVE: Final = "/pyspark.zip"


def worker_python() -> str:
    """Return what a local Spark runs as Python: this environment's script, if it is installed."""
    script = Path(sys.executable).with_name("shardstream-worker")
    return str(script) if script.exists() else sys.executable


def main() -> None:
    """Become Python with the arguments of this process."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = (folder for folder in path if not folder.endswith(ARCHIVE))
    os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - no shell is wanted
