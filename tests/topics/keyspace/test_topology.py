import json
import threading
from dataclasses import replace

import pytest

from event_token import KeyRange
from event_token.errors import Halt, Retry, UsageError
from tests.topics.schemas.writing import TIMEOUT_S, commit, transactional, write
from topics.errors import CorruptRecord, TopologyChanged
from topics.kafka.client import ClientConfig, Deadline
from topics.kafka.provisioning import provision_keyspace
from topics.keyspace.topology import (
    BeginDecision,
    ReshardEntry,
    ShardEntry,
    ShardState,
    TableVindex,
    Topology,
    read_topology,
    topology_from_json,
    topology_to_json,
    update_topology,
)
from topics.names import topology_topic, topology_transactional_id


def topology(keyspace: str, *names: str, epoch: int = 0) -> Topology:
    """A keyspace with these serving shards."""
    return Topology(keyspace, epoch, tuple(ShardEntry(name) for name in names))


@pytest.fixture
def provisioned(config: ClientConfig, keyspace: str) -> str:
    """A keyspace without a topology yet."""
    provision_keyspace(config, keyspace)
    return keyspace


def test_what_is_written_is_read(config: ClientConfig, provisioned: str) -> None:
    """A new keyspace has none; each change gets the current one and is readable on return."""
    seen = []
    assert read_topology(config, provisioned) is None

    def first(before: Topology | None) -> Topology:
        seen.append(before)
        return topology(provisioned, "-80", "80-")

    def split(before: Topology | None) -> Topology:
        seen.append(before)
        return Topology(
            provisioned,
            1,
            (
                ShardEntry("-80"),
                ShardEntry("80-", ShardState.RETIRED),
                ShardEntry("80-c0"),
                ShardEntry("c0-"),
            ),
            (TableVindex("shop", "orders", ("customer",), "xxhash"),),
            (ReshardEntry("r1", ("80-",), ("80-c0", "c0-"), "SWITCHED", 5_000_000),),
        )

    update_topology(config, provisioned, first)
    written = update_topology(config, provisioned, split)

    assert seen == [None, topology(provisioned, "-80", "80-")]
    assert read_topology(config, provisioned) == written
    assert written.shards_for(KeyRange.parse("a0-")) == ("80-c0", "c0-")


def test_no_change_writes_nothing(config: ClientConfig, provisioned: str) -> None:
    """A start that finds its shards writes nothing."""
    wanted = topology(provisioned, "-")

    for _ in range(2):
        assert update_topology(config, provisioned, lambda _before: wanted) == wanted


def test_a_writer_that_was_fenced_is_told(config: ClientConfig, provisioned: str) -> None:
    """Of two concurrent writers the later one wins; the other writes nothing and gets an error."""

    def overtaken(before: Topology | None) -> Topology:
        assert before is None
        update_topology(config, provisioned, lambda _before: topology(provisioned, "-80", "80-"))
        return topology(provisioned, "-")

    with pytest.raises(TopologyChanged, match="another writer took over"):
        update_topology(config, provisioned, overtaken)

    assert read_topology(config, provisioned) == topology(provisioned, "-80", "80-")
    assert issubclass(TopologyChanged, Retry)


def test_writers_that_try_again_all_get_their_change_in(
    config: ClientConfig,
    provisioned: str,
) -> None:
    """Each change builds on the others: none is lost, none applied twice."""
    update_topology(config, provisioned, lambda _before: topology(provisioned, "-"))
    done: list[int] = []

    def add(before: Topology | None) -> Topology:
        assert before is not None
        return topology(provisioned, "-", epoch=before.epoch + 1)

    def writer() -> None:
        deadline = Deadline(TIMEOUT_S)
        while not deadline.passed:
            try:
                done.append(update_topology(config, provisioned, add).epoch)
            except TopologyChanged:
                continue
            return

    threads = [threading.Thread(target=writer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)

    assert sorted(done) == [1, 2]
    assert read_topology(config, provisioned) == topology(provisioned, "-", epoch=2)


def test_what_change_raises_leaves_all_as_it_was(config: ClientConfig, provisioned: str) -> None:
    """A refused change writes nothing, and the next writer finds nothing open."""
    wanted = topology(provisioned, "-", epoch=1)
    update_topology(config, provisioned, lambda _before: wanted)

    with pytest.raises(UsageError, match="do not cover"):
        update_topology(config, provisioned, lambda _before: topology(provisioned, "-80"))
    with pytest.raises(UsageError, match="cannot follow"):
        update_topology(config, provisioned, lambda _before: topology(provisioned, "-"))

    assert read_topology(config, provisioned) == wanted


def test_uncommitted_topology_is_not_seen(config: ClientConfig, provisioned: str) -> None:
    """A writer that died before its commit changed nothing; the next one ends its transaction."""
    topic = topology_topic(provisioned)
    dead = transactional(config, topology_transactional_id(provisioned))
    write(dead, topic, [topology_to_json(topology(provisioned, "-"))])

    assert read_topology(config, provisioned) is None
    wanted = topology(provisioned, "-80", "80-")
    update_topology(config, provisioned, lambda _before: wanted)
    assert read_topology(config, provisioned) == wanted


def test_a_foreign_record_is_corrupt(config: ClientConfig, provisioned: str) -> None:
    """A record with another key is not taken for the topology, and its offset is named."""
    topic = topology_topic(provisioned)
    producer = transactional(config, "somebody")
    write(producer, topic, [b"{}"])
    commit(config, producer, topic)

    with pytest.raises(CorruptRecord, match=f"{topic}, offset 0"):
        read_topology(config, provisioned)


def test_missing_topic_is_an_error_of_usage(config: ClientConfig, keyspace: str) -> None:
    """A keyspace that was not provisioned is named."""
    with pytest.raises(UsageError, match=keyspace):
        read_topology(config, keyspace)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((), "do not cover"),
        (("-80",), "do not cover"),
        (("-80", "40-"), "do not cover"),
        (("-80", "80-", "80-"), "is named again"),
        (("-8", "8-"), "odd number of digits"),
    ],
)
def test_shards_that_do_not_tile_are_refused(names: tuple[str, ...], reason: str) -> None:
    """A gap or an overlap would lose or repeat changes of the keys in it."""
    with pytest.raises(UsageError, match=reason):
        topology("ks", *names)


@pytest.mark.parametrize(
    ("key_range", "expected"),
    [
        ("-", ("-40", "40-80.2", "80-")),
        ("-40", ("-40",)),
        ("3f-41", ("-40", "40-80.2")),
        ("80-", ("80-",)),
    ],
)
def test_shards_for_a_range_cover_it(key_range: str, expected: tuple[str, ...]) -> None:
    """A reader gets the serving shards that overlap its range, in order of ranges."""
    shards = (
        ShardEntry("80-"),
        ShardEntry("40-80", ShardState.RETIRED),
        ShardEntry("40-80.2"),
        ShardEntry("-40"),
        ShardEntry("-20", ShardState.TARGET),
    )

    assert Topology("ks", 3, shards).shards_for(KeyRange.parse(key_range)) == expected


def test_a_decision_is_kept() -> None:
    """B17: what is read back has the decision of a switch, or that there is none yet."""
    entry = ReshardEntry("r1", ("-",), ("-80", "80-"), "RUNNING")
    decided = replace(entry, decision=BeginDecision(1_700_000_000_010_000, {"-": 12}))
    for reshard in (entry, decided):
        wanted = replace(topology("ks", "-"), reshards=(reshard,))

        assert topology_from_json(topology_to_json(wanted), "ks", "here") == wanted


def test_layouts_of_other_releases_halt() -> None:
    """Another layout is refused by its number."""
    fields = json.loads(topology_to_json(topology("ks", "-")))
    value = json.dumps({**fields, "version": 2}).encode()

    with pytest.raises(Halt, match="layout 2"):
        topology_from_json(value, "ks", "ks.topology, offset 3")


@pytest.mark.parametrize(
    "value",
    [None, b"", b"[]", b"{}", b"\xff", b'{"version": 1}', topology_to_json(topology("other", "-"))],
)
def test_broken_records_are_corrupt(value: bytes | None) -> None:
    """A record that is not a topology of this keyspace is refused with its position."""
    with pytest.raises(CorruptRecord, match=r"ks\.topology, offset 3"):
        topology_from_json(value, "ks", "ks.topology, offset 3")
