"""The Python that a local Spark runs."""

import os
import subprocess
import sys

from spark_consumers.worker_python import worker_python
from tests.repository import ROOT


def test_a_worker_imports_pyspark_as_installed() -> None:
    """The archive that Spark puts in front leaves the path, and the arguments are Python's."""
    path = os.pathsep.join(
        ("/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j.zip", str(ROOT))
    )
    shown = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:])"
    done = subprocess.run(
        [worker_python(), "-c", shown, "pyspark.worker"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert worker_python() != sys.executable
    assert done.stdout.split() == [path.partition(os.pathsep)[2], "pyspark.worker"]
