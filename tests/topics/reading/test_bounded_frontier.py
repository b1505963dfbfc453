"""The frontier of a batch with a bound, found step by step, is what looking at all ticks finds."""

from collections.abc import Mapping
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generated import examples
from tests.topics.reading.shard_histories import (
    History,
    Reading,
    beginning,
    histories,
    merged,
    whole_range,
)
from topics.progress.record import Cut
from topics.reading.planner import MaxHold, Mode, Planner, Strict


class ComparedPlanner(Planner):
    """A planner that tries each tick of every shard, too."""

    compared = 0

    def _bounded_frontier_us(
        self, frontier_us: int, late: Mapping[str, Cut], late_rows: int, max_rows: int
    ) -> int:
        shards = [known for shard, known in self._shards.items() if shard not in late]
        so_far_us = self.position.frontier_us
        ticks_us = {t for known in shards for t in known._times_us if so_far_us < t < frontier_us}
        rows = {
            time_us: late_rows + sum(known.cut(time_us).seq - known.at.seq for known in shards)
            for time_us in sorted({so_far_us, frontier_us, *ticks_us})
        }
        fitting = [time_us for time_us, count in rows.items() if count <= max_rows]
        wanted_us = fitting[-1] if fitting else so_far_us
        if rows[wanted_us] == 0 and wanted_us < frontier_us:  # the first cell with rows, whole
            wanted_us = next(time_us for time_us in rows if time_us > wanted_us)

        found_us = super()._bounded_frontier_us(frontier_us, late, late_rows, max_rows)

        assert found_us == wanted_us
        self.compared += 1
        return found_us


@given(
    histories(),
    st.randoms(use_true_random=False),
    st.integers(1, 12),
    st.sampled_from((Strict(), MaxHold(0), MaxHold(20))),
    st.sets(st.integers(0, 2)),
)
@settings(max_examples=examples(300))
def test_a_bounded_frontier_is_that_of_all_ticks(
    made: list[History], random: Random, max_rows: int, mode: Mode, silent: set[int]
) -> None:
    """Shards that are even, far apart, silent and late give the same frontier either way."""
    planner = ComparedPlanner(beginning(made), whole_range(made), mode)
    reading = Reading(made, planner, random)
    reading.silent = frozenset(made[n].shard for n in silent if n < len(made) - 1)
    rows = [row for _, part in reading.batches(max_rows) for row in part]
    reading.silent = frozenset()
    reading.now_ms += 1_000
    rows += [row for _, part in reading.batches(max_rows) for row in part]

    assert sorted(rows) == merged(made)
    assert planner.compared
