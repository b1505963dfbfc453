"""Batches, cut anywhere, leave a sink with the rows of the databases and of the change log."""

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_consumers.applying.homes import range_of
from spark_consumers.applying.tables import Change
from tests.generated import examples
from tests.spark_consumers.applying.batches import Source, event_of
from tests.spark_consumers.applying.histories import History, applied
from tests.spark_consumers.applying.reference_sink import ReferenceTable
from topics.records.vevent import VEvent

SourceRow = dict[str, object]


def merged(log: list[Change]) -> list[Change]:
    """A log in merged order."""
    return sorted(log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))


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


@settings(max_examples=examples(60), deadline=None)
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


def held_back(random: Random, source: Source, log: list[Change]) -> list[SourceRow]:
    """The rows of a log as they come while shards are silent for a while, and then late.

    Of a shard that came from a silent one nothing comes before it speaks again, as at a hop. Some
    changes after the last statement come twice, the second time as possible duplicates.
    """
    found: list[SourceRow] = []
    silent: list[VEvent] = []
    frontier_us = 0

    def speak() -> None:
        for event in silent:
            is_late = event.token_text.timestamp_us < frontier_us
            found.extend(source.rows([event], late=is_late))
        silent.clear()

    events = [event_of(record) for record in log]
    for event in events:
        if silent and event.shard == silent[0].shard:
            silent.append(event)
            continue
        if silent and range_of(event.shard).overlaps(range_of(silent[0].shard)):
            speak()
        if random.random() < 0.1:
            speak()
        if not silent and random.random() < 0.1:
            silent.append(event)
            continue
        found.extend(source.rows([event]))
        frontier_us = max(frontier_us, event.token_text.timestamp_us)
    speak()
    last = max((i for i, event in enumerate(events) if event.statement), default=-1)
    doubtful = [event for event in events[last + 1 :] if random.random() < 0.1]
    return found + source.rows(doubtful, doubtful=True)


@settings(max_examples=examples(60), deadline=None)
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
