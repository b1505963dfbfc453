"""PySpark 4.2, the oldest supported version, passes a smoke test of each Spark interface."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import ROOT

pytestmark = pytest.mark.usefixtures("real_servers")

# `make test` installs it here, beside the newest PySpark of the environment.
OLD_SPARK = Path(sys.prefix) / "pyspark-4.2"
# Starts its own broker and JVM on a machine that runs other tests.
SMOKE_S_MAX = 600

# Batch read, stream with admission control, restart from a checkpoint, change log.
TESTS = (
    "source/test_data_source.py::test_batch_read_between_times",
    "source/test_data_source.py::test_batches_are_bounded_disjoint_and_whole",
    "source/test_data_source.py::test_restart_goes_on_from_the_checkpoint",
    "change_log/test_change_log.py::test_every_change_once_with_its_position",
)


def run_with_old_spark(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with PySpark 4.2 in front of everything else."""
    environment = {k: v for k, v in os.environ.items() if k not in {"SPARK_HOME", "PYSPARK_PYTHON"}}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(OLD_SPARK)},
        check=False,
        capture_output=True,
        text=True,
        timeout=SMOKE_S_MAX,
    )


def test_spark_4_2_passes_the_smoke_test() -> None:
    """Reading, admission control, restarts and the change log work with the oldest PySpark."""
    version = run_with_old_spark("-c", "import pyspark; print(pyspark.__version__)").stdout.strip()
    assert version.startswith("4.2."), f"run `make test`, which installs it in {OLD_SPARK}"

    tests = [f"tests/spark_consumers/{name}" for name in TESTS]
    done = run_with_old_spark("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)

    assert done.returncode == 0, done.stdout[-5000:]
    assert f"{len(TESTS)} passed" in done.stdout
