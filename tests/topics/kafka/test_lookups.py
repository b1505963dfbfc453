"""Look-ups of many topics at once, on a real broker: each finds what a look-up alone finds."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from event_token.errors import Halt, Retry
from tests.topics.schemas.writing import TIMEOUT_S, commit, make_topic, transactional, write
from topics.kafka import lookups as lookups_module
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import TopicMissing
from topics.kafka.lookups import (
    Exists,
    Lookup,
    Lookups,
    OffsetAt,
    Pause,
    RecordRange,
    bounds,
    first_between,
    last_between,
    next_of,
)
from topics.kafka.partition_reader import (
    TAIL_TIMEOUT_S,
    PartitionReader,
    StoredRecord,
    open_end_consumer,
)


@pytest.fixture
def lookups(config: ClientConfig) -> Iterator[Lookups]:
    """What has asked for nothing yet."""
    with Lookups(config) as found:
        yield found


def records_between(topic: str, lower: int, upper: int) -> Lookup[list[StoredRecord]]:
    """Return all records of a range."""
    records = RecordRange(topic, lower, upper)
    found: list[StoredRecord] = []
    while (record := (yield from next_of(records))) is not None:
        found.append(record)
    return found


def exists(topic: str) -> Lookup[bool]:
    """Return whether there is the topic."""
    found: bool = yield Exists(topic)
    return found


def offset_at(topic: str, timestamp_ms: int) -> Lookup[int]:
    """Return the first offset of that time or later."""
    found: int = yield OffsetAt(topic, timestamp_ms)
    return found


@pytest.fixture
def written(config: ClientConfig, keyspace: str) -> list[str]:
    """Topics: empty, short, with aborted records at the end, longer than a fetch, begun late."""
    topics = [f"{keyspace}.{n}" for n in range(5)]
    for topic in topics:
        make_topic(config, topic)
    producer = transactional(config, keyspace)
    for topic, records in ((topics[1], 2), (topics[2], 5), (topics[3], 900), (topics[4], 30)):
        for first in range(0, records, 100):
            values = (f"{n}".encode() * 100 for n in range(first, min(first + 100, records)))
            write(producer, topic, values)
            commit(config, producer, topic)
    write(producer, topics[2], [b"aborted"] * 700)
    producer.abort_transaction()
    write(producer, topics[2], [b"last"])
    commit(config, producer, topics[2])
    write(producer, topics[2], [b"aborted"] * 80)
    producer.abort_transaction()
    admin = open_admin(config)  # its answers end with it
    [removed] = admin.delete_records([TopicPartition(topics[4], 0, 12)]).values()
    removed.result(TIMEOUT_S)
    write(producer, topics[1], [b"open"])
    return topics


def test_look_ups_together_find_what_each_finds_alone(
    config: ClientConfig, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds, first, last and all records of any ranges; one consumer reads all topics."""
    opened: list[Consumer] = []

    def counted(config: ClientConfig, fetch_bytes: int | None = None) -> Consumer:
        opened.append(open_end_consumer(config, fetch_bytes))
        return opened[-1]

    monkeypatch.setattr(lookups_module, "open_end_consumer", counted)
    monkeypatch.setattr(lookups_module, "_UNASSIGN_AT", 2)
    with Lookups(config) as lookups:
        limits = lookups.results({topic: bounds(topic) for topic in written})
        ranges = {
            (topic, lower, upper)
            for topic, (start, end) in limits.items()
            for lower in {start, start + 1, (start + end) // 2}
            for upper in {lower, lower + 1, (lower + end) // 2, end}
            if lower <= upper <= end
        }
        first = lookups.results({place: first_between(*place) for place in ranges})
        last = lookups.results({place: last_between(*place) for place in ranges})
        records = lookups.results({place: records_between(*place) for place in ranges})

    assert len(opened) == 1
    assert [start for start, _ in limits.values()] == [0, 0, 0, 0, 12]
    for topic in written:
        with PartitionReader(config, topic, 0, TAIL_TIMEOUT_S) as reader:
            assert limits[topic] == reader.bounds()
            for place in (each for each in ranges if each[0] == topic):
                wanted = list(reader.records(*place[1:]))
                assert records[place] == wanted
                assert first[place] == next(iter(wanted), None)
                assert last[place] == (wanted[-1] if wanted else None)
    assert any(len(found) > 800 for found in records.values())


def test_a_range_goes_on_after_other_questions(lookups: Lookups, written: list[str]) -> None:
    """The same object gives each record once, whatever is asked in between."""
    aborted = written[2]

    def in_between() -> Lookup[list[StoredRecord]]:
        _, end = yield from bounds(aborted)
        records = RecordRange(aborted, 0, end)
        found: list[StoredRecord] = []
        while (record := (yield from next_of(records))) is not None:
            found.append(record)
            yield from bounds(aborted)
        return found

    _, end = lookups.result(bounds(aborted))
    found = lookups.result(in_between())

    assert [record.offset for record in found[:5]] == list(range(5))
    assert found == lookups.result(records_between(aborted, 0, end))


def test_retention_between_bounds_and_records(
    config: ClientConfig, lookups: Lookups, written: list[str]
) -> None:
    """What has been removed since is not there; the rest of all topics is."""
    partly, wholly = written[3], written[4]
    limits = lookups.results({topic: bounds(topic) for topic in written})
    admin = open_admin(config)
    removed = [TopicPartition(partly, 0, 333), TopicPartition(wholly, 0, limits[wholly][1])]
    for each in admin.delete_records(removed).values():
        each.result(TIMEOUT_S)

    found = lookups.results({t: records_between(t, *limits[t]) for t in written})

    assert [len(found[topic]) for topic in written[:3]] == [0, 2, 6]
    assert found[partly][0].offset == 333
    assert found[wholly] == []


def test_what_is_wrong_with_one_topic_names_it(lookups: Lookups, written: list[str]) -> None:
    """An offset that no topic has is an error of that topic."""
    wrong = {topic: records_between(topic, 0, 2) for topic in written[1:3]}

    with pytest.raises(Halt, match=f"reading {written[3]} from offset 5000"):
        lookups.results({**wrong, written[3]: records_between(written[3], 5_000, 5_001)})


@pytest.mark.full
def test_topics_that_are_not_there(lookups: Lookups, written: list[str], keyspace: str) -> None:
    """They can be asked for; offsets of one end with an error that names it."""
    none = [f"{keyspace}.none.{n}" for n in range(2)]
    topics = [*written, *none]

    found = lookups.results({topic: exists(topic) for topic in topics})

    assert list(found.values()) == [True] * len(written) + [False] * len(none)
    with pytest.raises(TopicMissing, match=none[0]):
        lookups.results({topic: bounds(topic) for topic in topics})


def test_a_topic_that_comes_late_is_there(
    lookups: Lookups, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has just started may not know it at first."""
    is_lacking = lookups._is_lacking
    asked: list[str] = []

    def late(topic: str) -> bool:
        asked.append(topic)
        return len(asked) == 1 or is_lacking(topic)

    monkeypatch.setattr(lookups, "_is_lacking", late)

    assert lookups.result(exists(written[0]))
    assert asked == [written[0]] * 2


def test_offsets_of_a_time(lookups: Lookups, written: list[str]) -> None:
    """Each topic is asked for its own time; behind the last record there is none."""
    empty, short, aborted, _, late = written

    found = lookups.results(
        {
            "empty": offset_at(empty, 0),
            "first": offset_at(short, 0),
            "late": offset_at(late, 0),
            "beyond": offset_at(aborted, 10**14),
        }
    )

    assert found == {"empty": -1, "first": 0, "late": 12, "beyond": -1}


def test_a_look_up_that_pauses_lets_the_others_go_on(lookups: Lookups, written: list[str]) -> None:
    """It asks again once the others have ended, and sees what they did."""
    ended: list[str] = []

    def ends(topic: str) -> Lookup[None]:
        _, end = yield from bounds(topic)
        yield from last_between(topic, 0, end)
        ended.append(topic)

    def waits(topic: str) -> Lookup[list[str]]:
        yield Pause(0.0)
        yield from bounds(topic)
        return list(ended)

    others = written[:3]
    found = lookups.results(
        {written[3]: waits(written[3]), **{topic: ends(topic) for topic in others}}
    )

    assert sorted(found[written[3]] or []) == others


def test_an_error_ends_all_look_ups(lookups: Lookups, written: list[str]) -> None:
    """What one raises is raised, the others are closed, and the next ones begin again."""
    closed: list[str] = []

    def reads(topic: str) -> Lookup[int]:
        try:
            _, end = yield from bounds(topic)
            found = yield from records_between(topic, 0, end)
        finally:
            closed.append(topic)
        return len(found)

    def fails(topic: str) -> Lookup[int]:
        yield from first_between(topic, 0, 1)
        raise Retry("of a look-up")

    with pytest.raises(Retry, match="of a look-up"):
        lookups.results({written[1]: fails(written[1]), written[3]: reads(written[3])})

    assert closed == [written[3]]
    assert lookups.result(reads(written[3])) == 900
