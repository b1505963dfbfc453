"""Batches, cut anywhere, leave a sink with the rows of the databases and of the change log."""

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generated import examples
from tests.sinks.rule.batches import Source, event_of
from tests.sinks.rule.histories import History, applied
from tests.sinks.rule.late_rows import SourceRow, held_back, merged
from tests.sinks.rule.reference_sink import ReferenceTable


def batches_of(
    random: Random, log: list[SourceRow], *, again: bool = True
) -> list[list[SourceRow]]:
    """The log, cut anywhere; with `again` some batches come twice, as in a replay."""
    found: list[list[SourceRow]] = []
    while log:
        cut = random.randint(1, 1 + len(log))
        found += [log[:cut]] * random.choice([1, 1, 1, 1 + again])
        log = log[cut:]
    return found


@settings(max_examples=examples(25), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60), st.sampled_from([1, 1, 4]))
def test_any_batches_leave_the_rows(random: Random, steps: int, partitions: int) -> None:
    """Moves, skewed clocks, splits and TRUNCATE, in batches cut anywhere, leave the true rows."""
    history = History(random)
    history.run(steps)
    source, sink = Source(), ReferenceTable()
    rows = source.rows(event_of(record) for record in merged(history.log))

    for batch in batches_of(random, rows):
        for changes in source.changes(batch, partitions=partitions):
            assert (changes.database, changes.table) == ("shop", "orders")
            sink.apply(changes)

    replayed = applied(history.log).by_key()
    assert sink.visible() == {key: json.loads(str(v.row)) for key, v in replayed.items()}
    assert {(v.home, json.dumps(v.row)) for v in sink.live()} == {
        (home, row) for (_, home), row in history.rows.items()
    }


@settings(max_examples=examples(25), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_late_rows_and_possible_duplicates_leave_the_rows(random: Random, steps: int) -> None:
    """Shards that were silent for a while, and changes that come again, leave the true rows."""
    history = History(random)
    history.run(steps)
    source, sink = Source(), ReferenceTable()

    for batch in batches_of(random, held_back(random, source, merged(history.log)), again=False):
        for changes in source.changes(batch):
            sink.apply(changes)

    replayed = applied(history.log).by_key()
    assert sink.visible() == {key: json.loads(str(v.row)) for key, v in replayed.items()}
    assert {(v.home, json.dumps(v.row)) for v in sink.live()} == {
        (home, row) for (_, home), row in history.rows.items()
    }
