"""Wrong entries that ordinary caches keep, beside ours, under the load of the cached shop."""

from collections.abc import Sequence
from typing import Final

from benchmarks.figures import Figure, Turn, figure
from benchmarks.stack import Stack
from shardstream.demo.cached.caches import FRESH
from shardstream.demo.cached.run import compare_caches

NAME: Final = "cache.wrong_entries"
# Of load, around the story's steps.
SECONDS: Final = 60
SECONDS_QUICK: Final = 20


def run(stack: Stack, _names: Sequence[str], *, runs: int, quick: bool) -> list[Figure]:
    """Count the entries that differ from the primaries' rows after the whole story, in per cent."""
    seconds = SECONDS_QUICK if quick else SECONDS
    turns: dict[str, list[Turn]] = {}
    for number in range(runs):
        stack.report(f"{NAME}: turn {number + 1}, {seconds} s of load")
        folder = stack.folder / f"shop{number}"
        folder.mkdir()
        found = compare_caches(seconds, folder, stack.report, split=not quick)
        wrong = {
            name: 100 * len(each.differences) / max(each.entries, 1) for name, each in found.items()
        }
        ours = wrong.pop(FRESH)
        for name, share in wrong.items():
            turns.setdefault(name, []).append(Turn(ours, share))
    return [figure(NAME, "% of entries", each, peer=name) for name, each in turns.items()]
