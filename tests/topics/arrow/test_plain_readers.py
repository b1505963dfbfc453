"""The plain sources of the compiled readers pass the readers' tests."""

from pathlib import Path

import pytest

from tests.plain_copy import copy_plain, run_python

pytestmark = pytest.mark.full

TESTS = ("tests/topics/arrow/test_shard_decoder.py", "tests/topics/records/test_record_decoder.py")


def test_the_plain_modules_pass_the_same_tests(tmp_path: Path) -> None:
    """A build without a compiler decodes the same values, only more slowly."""
    root = copy_plain(tmp_path)
    # The compiled modules are given all examples.
    options = ("-p", "no:cacheprovider", "--hypothesis-profile=quick")

    done = run_python(root, "-m", "pytest", *options, *TESTS)

    assert done.returncode == 0, done.stdout[-3000:]
    assert "shardstream: plain Python" in done.stdout
