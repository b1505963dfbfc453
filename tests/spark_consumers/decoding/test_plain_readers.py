import os
import subprocess
import sys

import pytest

from tests.repository import ROOT
from topics.compiled_modules import PLAIN_VARIABLE


@pytest.mark.parametrize(
    "tests", ["spark_consumers/decoding/test_shard_decoder.py", "topics/records/test_codec.py"]
)
def test_the_plain_modules_pass_the_same_tests(tests: str) -> None:
    """Without a compiler the same sources run uncompiled, and decode the same."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{tests}"],
        cwd=ROOT,
        env={**os.environ, PLAIN_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout[-3000:]
