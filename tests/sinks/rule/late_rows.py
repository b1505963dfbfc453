"""The rows of a log as a source gives them while shards are silent for a while."""

from random import Random

from sinks.lake.change_log.reading import Change
from sinks.rule.homes import range_of
from tests.sinks.rule.batches import Source, event_of
from topics.records.vevent import VEvent

SourceRow = dict[str, object]


def merged(log: list[Change]) -> list[Change]:
    """A log in merged order."""
    return sorted(log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))


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
