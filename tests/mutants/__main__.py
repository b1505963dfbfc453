"""Measure which part of the mutants of the pure cores their own tests notice.

`make mutants` runs it; `python -m tests.mutants reading --number 100 --seed 7` chooses.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.forks import ForkedTests
from tests.mutants.placed import equivalent, mutants_in
from tests.mutants.targets import TARGETS
from tests.plain_copy import copy_plain

SEED = 1


def main(arguments: Sequence[str]) -> int:
    """Print the survivors and the rate for each target; 1 if its tests fail without a change."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="default: all")
    parser.add_argument("--number", type=int, help="random mutants per target; default: all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--again", type=Path, help="what a run has printed: only its survivors")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    leave_out = equivalent()
    again = None if chosen.again is None else chosen.again.read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory(prefix="shardstream-mutants-") as folder:
        root = copy_plain(Path(folder))
        for name in chosen.targets or TARGETS:
            tests = ForkedTests(root, TARGETS[name].tests)
            if printed := tests.prepare():
                print(f"{name}: the tests fail without a mutant\n{printed}")
                return 1
            drawn = [each for each in mutants_in(TARGETS[name]) if each.name not in leave_out]
            if again is not None:
                names = {line.partition(": ")[2] for line in again}
                drawn = [each for each in drawn if each.name in names]
            if chosen.number is not None:
                drawn = random.Random(chosen.seed).sample(drawn, min(chosen.number, len(drawn)))
            lived = 0
            for survivor in tests.survivors(drawn, chosen.jobs):
                lived += 1
                print(f"  {survivor.mutant.line}: {survivor.name}", flush=True)
            killed = len(drawn) - lived
            print(
                f"{name}: {killed} of {len(drawn)} noticed, {killed / max(len(drawn), 1):.1%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
