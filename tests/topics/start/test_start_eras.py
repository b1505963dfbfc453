"""A start in the past finds the shards of that time, and none on a target before its BEGIN."""

from itertools import islice

import pytest

from event_token import KeyRange
from tests.topics.schemas.writing import remove_topics
from tests.topics.shard_writer import CELL_US, START_US, Writers
from tests.topics.splits import entry, seen, split, topology_after_split
from topics.errors import StartNotReached
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import Era, era_of
from topics.keyspace.topology import ShardEntry, Topology, update_topology
from topics.start.positions import resolve_start
from topics.start.start_forms import StartWord
from topics.stream.subscriber import StreamSubscriber


def test_eras_follow_the_reshards_back() -> None:
    """Shards of any time and range, over splits, a merge, and a reshard that was cancelled."""
    topology = Topology(
        "shop",
        3,
        tuple(ShardEntry(s) for s in ("-c0.2", "c0-")),
        reshards=(
            entry("r1", "-", "-80 80-", 100),
            entry("r0", "80-", "80-a0 a0-", None),
            entry("r2", "80-", "80-c0 c0-", 200),
            entry("r3", "-80 80-c0", "-c0.2", 300),
        ),
    )

    def at(time_us: int, key_range: str = "-") -> Era:
        return era_of(topology, KeyRange.parse(key_range), lambda r: time_us < (r.hop_time_us or 0))

    assert at(300) == Era(("-c0.2", "c0-"), ())
    assert at(299).shards == ("-80", "80-c0", "c0-")
    assert at(199).shards == ("-80", "80-")
    assert [r.reshard_id for r in at(99).undone] == ["r3", "r2", "r1"]
    assert at(99, "d0-").shards == ("-",)
    assert at(250, "c0-") == Era(("c0-",), ())
    assert at(250, "-40").shards == ("-80",)


@pytest.mark.full
def test_starts_across_a_split(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A start at earliest or at any time delivers everything not older, and no copied row."""
    (_, source, *_), expected = split(writers, targets)
    topology = topology_after_split(keyspace)
    update_topology(config, keyspace, lambda _: topology)
    # A definition long after END, when the operator cleaned up.
    source.commit((50_000, 1))

    for start_us in (20_000, 38_000, 46_000, 70_000):
        rest = [e for e in expected if e[0] >= START_US + start_us - start_us % CELL_US]
        with StreamSubscriber(keyspace, start=START_US + start_us, config=config) as stream:
            assert seen(list(islice(stream, len(rest)))) == rest
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        assert seen(list(islice(stream, len(expected)))) == expected
    with StreamSubscriber(keyspace, start="latest", config=config, idle_timeout_s=0.3) as stream:
        assert list(stream) == []
        assert list(stream.position.shards if stream.position else ()) == ["-80", "80-c0", "c0-"]


@pytest.mark.full
def test_earliest_without_the_sources(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """If a source's topics are deleted, earliest is BEGIN in its targets."""
    (_, source, *_), expected = split(writers, targets)
    topology = topology_after_split(keyspace)
    update_topology(config, keyspace, lambda _: topology)
    remove_topics(config, [source.topics.log, source.topics.progress, source.topics.copy])

    rest = [e for e in expected if e[1] != "80-"]
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        assert seen(list(islice(stream, len(rest)))) == rest


@pytest.mark.full
def test_earliest_with_targets_that_lost_their_beginning(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """F27: If retention has deleted a target's BEGIN, earliest is after the hop."""
    (*_, high), expected = split(writers, targets)
    topology = topology_after_split(keyspace)
    update_topology(config, keyspace, lambda _: topology)
    high.remove_until(8)  # copied rows, BEGIN, the row behind it: seq 7 comes first

    rest = [e for e in expected if e[1] != "80-" and (e[1] != "c0-" or e[2] >= 7)]
    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        assert seen(list(islice(stream, len(rest)))) == rest


def test_a_target_whose_log_is_behind_the_topology(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A start on a target waits for its BEGIN, and reports a timeout."""
    left, *_ = writers("-80", "80-")
    for target in targets("80-c0", "c0-"):
        target.commit((0, 2))

    # Both targets are behind, and either may be named.
    behind = r"shard (80-c0|c0-): its log has not reached BEGIN of r"
    with pytest.raises(StartNotReached, match=behind):
        resolve_start(
            StartWord.LATEST,
            config=config,
            topology=topology_after_split(keyspace),
            key_range=KeyRange.parse("80-"),
            schema_ids=left.schema_ids,
            wait_s=0.2,
        )


@pytest.mark.full
def test_a_target_whose_log_was_started_over(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A target that lost BEGIN with its log is read from the new one; nobody waits for the mark."""
    (_, _, _, high), _ = split(writers, targets)
    update_topology(config, keyspace, lambda _: topology_after_split(keyspace))
    remove_topics(config, list(high.topics.written))
    (again,) = targets("c0-")
    again.heartbeat(60_000_000)
    again.commit((60_000_000, 2))
    again.wait_committed()

    for start, seq in ((StartWord.LATEST, 2), (StartWord.EARLIEST, 0)):
        at = resolve_start(
            start,
            config=config,
            topology=topology_after_split(keyspace),
            key_range=KeyRange.parse("c0-"),
            schema_ids=again.schema_ids,
            wait_s=0.2,
        )
        assert {shard: place.seq for shard, place in at.shards.items()} == {"c0-": seq}
