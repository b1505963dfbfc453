"""A history as of any time, after everything that can happen to its rows and its query."""

import json
import tempfile
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.lake.change_log.reading import Change
from tests.generated import examples
from tests.sinks.lake.state.batch_queries import Died, Query, visible
from tests.sinks.lake.state.versions import current, values, versions
from tests.sinks.rule.batches import Source, event_of
from tests.sinks.rule.histories import History, applied
from tests.sinks.rule.late_rows import SourceRow, held_back, merged

BATCH_ROWS_MAX = 25


def followed(log: list[Change], time_us: int) -> dict[str, int]:
    """The values that the log up to and with a time leaves."""
    rows = applied([r for r in log if int(str(r["timestamp_us"])) <= time_us]).by_key()
    return {key: json.loads(str(version.row))["value"] for key, version in rows.items()}


def frontiers(rows: list[SourceRow]) -> list[int]:
    """The frontier of a batch that ends before each row: no later row is earlier but late ones."""
    least = [max(int(str(row["timestamp_us"])) for row in rows) + 1]
    for row in reversed(rows):
        is_late = row["late"] or row["possible_duplicate"]
        least.append(least[-1] if is_late else min(least[-1], int(str(row["timestamp_us"]))))
    return least[::-1] + [least[0]] * BATCH_ROWS_MAX


def follow(random: Random, query: Query, rows: list[SourceRow]) -> None:
    """Apply rows in batches cut anywhere; the driver dies, and loses its checkpoint."""
    ends, done = frontiers(rows), 0
    while done < len(rows):
        number = random.randint(1, BATCH_ROWS_MAX)
        if random.random() < 0.5:
            try:
                query.run(rows[done : done + number], random.randint(0, 2), ends[done + number])
            except Died:
                if random.random() < 0.5 and query.batch_id:
                    query.lose_checkpoint()
                    number = random.randint(1, BATCH_ROWS_MAX)
            else:
                done += number
                continue
        query.run(rows[done : done + number], frontier_us=ends[done + number])
        done += number


@settings(max_examples=examples(4), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_any_time_is_that_of_a_replay(random: Random, steps: int) -> None:
    """Moves, skewed clocks, splits, TRUNCATE; the driver dies anywhere, checkpoints get lost.

    As of any time the history has the rows that the log up to then leaves, and what is open is the
    current state.
    """
    history = History(random)
    history.put()
    history.run(steps)
    log = merged(history.log)
    source = Source()
    rows = source.rows(event_of(record) for record in log)
    with tempfile.TemporaryDirectory() as folder:
        follow(random, Query(Path(folder), source, history=True), rows)
        found, now = versions(Path(folder)), visible(Path(folder))

    for time_us in sorted({int(str(record["timestamp_us"])) for record in log}):
        assert values(found, time_us) == followed(log, time_us)
    assert current(found) == now


@settings(max_examples=examples(4), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_late_rows_and_possible_duplicates_change_no_version_that_ended(
    random: Random, steps: int
) -> None:
    """Versions of a key never overlap, and what is open is the current state."""
    history = History(random)
    history.put()
    history.run(steps)
    source = Source()
    rows = held_back(random, source, merged(history.log))
    with tempfile.TemporaryDirectory() as folder:
        query = Query(Path(folder), source, history=True)
        ended: set[tuple[object, ...]] = set()
        cut = random.randint(0, len(rows))
        for part, end in ((rows[:cut], frontiers(rows)[cut]), (rows[cut:], None)):
            query.run(part, frontier_us=end)
            found, now = versions(Path(folder)), visible(Path(folder))
            assert current(found) == now
            closed = {tuple(row.values()) for row in found if row["_to_us"] is not None}
            assert ended <= closed
            ended = closed
    for time_us in {row["_from_us"] for row in found}:
        values(found, time_us)
