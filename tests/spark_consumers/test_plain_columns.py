import os
import subprocess
import sys
from pathlib import Path

from topics.compiled_modules import PLAIN_VARIABLE


def test_the_plain_modules_pass_the_same_tests() -> None:
    """Without a compiler the same sources run uncompiled, and decode the same."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            str(Path(__file__).with_name("test_columnar.py")),
        ],
        env={**os.environ, PLAIN_VARIABLE: "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert done.returncode == 0, done.stdout[-3000:]
