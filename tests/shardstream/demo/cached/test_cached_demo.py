"""`shardstream demo --cache --plain`, without the split: all caches under one load, on servers."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardstream.demo.cached.catalogue import all_keys
from tests.repository import ROOT
from tests.shardstream.command_line import run

pytestmark = pytest.mark.usefixtures("real_servers")

# Half a minute if it has the machine to itself.
DEMO_S_MAX = 600
# The split has tests of its own, and would double the time. So does the load that is for the eye,
# and what is looked up for the screen alone.
WITHOUT_SPLIT = """
import sys
from pathlib import Path
from shardstream.demo.cached import load, run
load.VIEWS_PER_S = 30
run.SAMPLE_INTERVAL_S = 60.0
is_proven = run.run_cached_demo(1, Path(sys.argv[1]), plain=True, split=False)
sys.exit(0 if is_proven else 1)
"""


@pytest.mark.full
def test_the_cache_holds_nothing_wrong_at_the_end(tmp_path: Path) -> None:
    """A killed invalidator, FLUSHALL and a lagging replica leave each page cached and right.

    The ordinary caches saw the same sales. The one that only expires cannot be right: nothing has
    told it of a change.
    """
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPLIT, str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEMO_S_MAX,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"demo: {len(all_keys())} entries, 0 wrong; cache-aside: "), last
    assert re.search(r"TTL 300 s: [1-9]\d* wrong$", last)
    for step in ("(a)", "(b)", "(d)", "(e)", "(g)"):
        assert step in done.stdout


def test_plain_is_refused_without_a_cache() -> None:
    """`--plain` compares caches."""
    refused = run("demo", "--plain")

    assert refused.returncode == 2
    assert "--plain requires --cache" in refused.stderr
