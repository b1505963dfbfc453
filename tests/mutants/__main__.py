"""Measure which part of random mutants of the pure cores their own tests notice.

`make mutants` runs it; `python -m tests.mutants reading --number 100 --seed 7` chooses.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.targets import TARGETS, Target
from tests.plain_copy import copy_plain
from tests.repository import ROOT

# A mutant that loops for ever is noticed. The slowest tests take 15 s on a quiet machine.
TEST_S_MAX = 180
NUMBER = 100
SEED = 1
# pytest's exit status when all tests pass; whatever else happens, somebody has noticed.
PASSED = 0
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


@dataclass(frozen=True, slots=True)
class Placed:
    """A mutant of the module at `path`, relative to the repository's root."""

    path: str
    mutant: Mutant

    @property
    def name(self) -> str:
        """How the list of equivalent mutants names it: without its line, which moves."""
        return f"{self.path}: {self.mutant.change}"


def main(arguments: Sequence[str]) -> int:
    """Print the survivors and the rate for each target; 1 if its tests fail without a change."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="default: all")
    parser.add_argument("--number", type=int, default=NUMBER, help="mutants per target")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    chosen = parser.parse_args(arguments)
    equivalent = set(EQUIVALENT.read_text().splitlines())
    with tempfile.TemporaryDirectory(prefix="shardstream-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(chosen.jobs):
            copies.put(_copy(Path(folder) / str(job)))
        for name in chosen.targets or TARGETS:
            target = TARGETS[name]
            if not _passes(target, copies):
                print(f"{name}: the tests fail without a mutant")
                return 1
            drawn = _draw(target, chosen.number, chosen.seed, equivalent)
            survivors = list(_survivors(target, drawn, copies, chosen.jobs))
            for survivor in survivors:
                print(f"  {survivor.path}:{survivor.mutant.line}: {survivor.mutant.change}")
            killed = len(drawn) - len(survivors)
            print(
                f"{name}: {killed} of {len(drawn)} noticed, {killed / len(drawn):.1%}", flush=True
            )
    return 0


def _copy(folder: Path) -> Path:
    folder.mkdir()
    return copy_plain(folder)


def _draw(target: Target, number: int, seed: int, equivalent: set[str]) -> list[Placed]:
    paths = sorted(path for glob in target.modules for path in ROOT.glob(glob))
    everything = [
        Placed(path.relative_to(ROOT).as_posix(), mutant)
        for path in paths
        for mutant in mutants_of(path.read_text())
    ]
    that_matter = [placed for placed in everything if placed.name not in equivalent]
    return random.Random(seed).sample(that_matter, min(number, len(that_matter)))


def _survivors(
    target: Target, drawn: Sequence[Placed], copies: "SimpleQueue[Path]", jobs: int
) -> Iterator[Placed]:
    def survives(placed: Placed) -> bool:
        root = copies.get()
        try:
            (root / placed.path).write_text(placed.mutant.source)
            return _run(target, root) == PASSED
        finally:
            shutil.copy(ROOT / placed.path, root / placed.path)
            copies.put(root)

    with ThreadPoolExecutor(jobs) as pool:
        for placed, lives in zip(drawn, pool.map(survives, drawn), strict=True):
            if lives:
                yield placed


def _passes(target: Target, copies: "SimpleQueue[Path]") -> bool:
    root = copies.get()
    copies.put(root)
    return _run(target, root) == PASSED


def _run(target: Target, root: Path) -> int | None:
    """Run the target's tests that need no servers; the exit status, None after the time limit."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        ended = subprocess.run(
            [*command, "-p", "no:xdist", "-m", "not servers and not slow", *target.tests],
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TEST_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
