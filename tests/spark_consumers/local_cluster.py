"""A Spark cluster with executors in JVMs of their own, in a process beside the tests'.

A Python process has one Spark at most, and the tests' own runs its tasks in the driver's JVM.
"""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardstream.local.processes import with_parent_guard
from spark_consumers.session import build_session, end_session
from tests.java_options import options_of_executors
from tests.repository import ROOT

MASTER = "local-cluster[2,1,1024]"
# Before an answer; Spark may print other lines.
_ANSWER = "ANSWER "


class LocalCluster:
    """Runs cases, one after the other: functions of a session that return what JSON can hold."""

    def __init__(self, folder: Path) -> None:
        """Start the process, which starts Spark; its output goes to a file of the folder."""
        self._errors = folder / "cluster.log"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                with_parent_guard([sys.executable, "-m", __name__]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def run(self, case: Callable[..., Any], **arguments: object) -> Any:
        """Call `case(spark, **arguments)` on the cluster and return its answer.

        It must be a function of a module. AssertionError, with its traceback, when it fails.
        """
        request = {"module": case.__module__, "name": case.__name__, "arguments": arguments}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(_ANSWER):
                answer = json.loads(line.removeprefix(_ANSWER))
                assert "error" not in answer, answer["error"]
                return answer["value"]
        raise AssertionError(f"the cluster has ended: {self._errors.read_text()[-3000:]}")

    def close(self) -> None:
        """Stop Spark and the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def _serve() -> None:
    settings = {"spark.executor.extraJavaOptions": options_of_executors()}
    spark = build_session("cluster of the tests", MASTER, settings)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            case = getattr(importlib.import_module(request["module"]), request["name"])
            try:
                answer = {"value": case(spark, **request["arguments"])}
            except Exception:  # noqa: BLE001 - the test that asked reports it
                answer = {"error": traceback.format_exc()}
            sys.stdout.write(_ANSWER + json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        end_session(spark)


if __name__ == "__main__":
    _serve()
