"""Reshards that other tools did: declared in the topology, no mark in any log."""

from collections.abc import Sequence
from itertools import islice

import pytest

from event_token import ClockUncertainty, KeyRange, ShardPosition, StreamPosition
from event_token.errors import UsageError
from tests.topics.shard_writer import START_US, Writers
from tests.topics.splits import (
    FAR_US,
    SOURCE_ROWS,
    SWITCHED_US,
    TARGET_ROWS,
    declare_split,
    write_slow_split,
    write_split,
)
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import declare
from topics.keyspace.topology import (
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
    read_topology,
)
from topics.reading.planner import MaxHold, Mode, Strict
from topics.reading.row_filters import ReadBeforeHop
from topics.records.vevent import TokenText, VEvent
from topics.schemas import TopicSchemaIds
from topics.start.unmarked_hop import unmarked_hop
from topics.stream.subscriber import StreamSubscriber

HOP_US = START_US + SWITCHED_US


def told(events: Sequence[VEvent]) -> list[tuple[str, int, bool]]:
    """Shard, seq and mark of events."""
    return [(e.shard, e.seq, e.possible_duplicate) for e in events]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look into the topology often."""
    monkeypatch.setattr("topics.stream.subscriber.TOPOLOGY_LOOK_S", 0.2)


@pytest.mark.full
@pytest.mark.parametrize("mode", [Strict(), MaxHold(60_000)])
@pytest.mark.usefixtures("soon")
def test_what_was_seen_is_dropped_and_what_cannot_be_told_is_marked(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers, mode: Mode
) -> None:
    """Changes with a seen origin are dropped; what the origin or the time leave open is marked."""
    write_split(*writers("-80", "80-"), *targets("80-c0", "c0-"))

    with StreamSubscriber(keyspace, start="earliest", config=config, mode=mode) as stream:
        events = list(islice(stream, 2))
        declare_split(config, keyspace)
        events += islice(stream, 6)
        position = events[-1].position

    assert told(events) == [*SOURCE_ROWS, *TARGET_ROWS]
    marked = sum(event.possible_duplicate for event in events)
    assert (stream.stats.possible_duplicates, stream.stats.hops) == (marked, 1)
    assert position is not None
    assert list(position.shards) == ["-80", "80-c0", "c0-"]


@pytest.mark.full
@pytest.mark.usefixtures("soon")
def test_a_restart_marks_what_came_with_the_source(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """A16: a new reader no longer knows what it read before the hop, and marks every origin."""
    write_slow_split(*writers("-80", "80-"), *targets("80-c0", "c0-"))

    with StreamSubscriber(keyspace, start="earliest", config=config) as stream:
        events = [next(stream)]
        declare_split(config, keyspace)
        events += islice(stream, 2)
        position = events[1].position
    with StreamSubscriber(keyspace, start=position or "", config=config) as stream:
        again = list(islice(stream, 2))

    assert told(events) == [("80-", 1, False), ("80-c0", 1, False), ("80-c0", 3, False)]
    assert told(again) == [("80-c0", 2, True), ("80-c0", 3, False)]


@pytest.mark.parametrize(
    ("at_us", "origin_us", "seen"),
    [
        (HOP_US - 1, None, None),
        (HOP_US, None, False),
        (HOP_US - 1, HOP_US - 1, None),
        (HOP_US, HOP_US, None),
        (HOP_US + 9, HOP_US + 9, None),
    ],
)
def test_what_is_known_after_a_restart(
    at_us: int, origin_us: int | None, seen: bool | None
) -> None:
    """A16: only a change that was made on the target after the switch is known to be new."""
    origin = None if origin_us is None else TokenText(origin_us, "80-", "", None)

    assert ReadBeforeHop(HOP_US).was_read(at_us, origin) is seen


@pytest.mark.full
def test_what_a_reader_without_tokens_has_seen(
    config: ClientConfig, keyspace: str, writers: Writers, targets: Writers
) -> None:
    """The last token before an offset decides where times cannot."""
    _, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    source.commit((0, 1), (3_000_000, 1), (4_000_000, 1))
    low.commit((2_000_000, 1), (3_000_000, 1))
    for writer, head_us in ((source, 4_000_000), (low, FAR_US), (high, FAR_US)):
        writer.heartbeat(head_us)
        writer.wait_committed()
    declare_split(config, keyspace)
    topology = read_topology(config, keyspace)
    assert topology is not None

    def hop(
        frontier_us: int, *, is_exact: bool, taken_us: int, off_us: int = 0
    ) -> tuple[StreamPosition, dict[str, ReadBeforeHop]] | None:
        shards = {"-80": ShardPosition(0, 0, None), "80-": ShardPosition(2, 2, None)}
        return unmarked_hop(
            StreamPosition(0, START_US + frontier_us, shards),
            config=config,
            topology=topology,
            key_range=KeyRange.parse("-"),
            schema_ids=TopicSchemaIds(config),
            is_exact=is_exact,
            taken_us={"80-": START_US + taken_us},
            clock=ClockUncertainty(off_us),
        )

    assert hop(3_990_000, is_exact=True, taken_us=4_000_000) is None
    assert hop(4_000_000, is_exact=True, taken_us=3_990_000) is None
    second = source.written[1].token
    hops = [
        hop(4_000_000, is_exact=True, taken_us=4_000_000),
        hop(4_000_000, is_exact=False, taken_us=4_000_000),
        hop(9_000_000, is_exact=True, taken_us=4_000_000),  # the source was passed by
    ]
    for found, token in zip(hops, [None, second, second], strict=True):
        assert found is not None
        end, seen = found
        assert end.shards["80-c0"] == ShardPosition(1, 1, None)
        assert seen["c0-"] == seen["80-c0"]
        assert seen["80-c0"].is_exact is (token is None)
        assert seen["80-c0"].tokens == {"80-": token}

    # A target's clock may be two seconds behind that of a source which is two seconds ahead.
    far = hop(4_000_000, is_exact=True, taken_us=4_000_000, off_us=2_000_000)
    assert far is not None
    assert far[0].shards["80-c0"] == ShardPosition(0, 0, None)


def test_declared_topologies() -> None:
    """A declaration retires the shards it replaces; an impossible one is refused."""
    before = Topology("shop", 3, tuple(ShardEntry(s) for s in ("-40", "40-80", "80-")))
    after = declare(before, ["-80", "80-c0", "c0-"], "move", 77)

    assert after.epoch == 5
    assert [(r.reshard_id, r.sources, r.targets) for r in after.reshards] == [
        ("move.1", ("-40", "40-80"), ("-80",)),
        ("move.2", ("80-",), ("80-c0", "c0-")),
    ]
    assert {r.state for r in after.reshards} == {ReshardState.DECLARED.value}
    assert {s.name for s in after.shards if s.state is ShardState.RETIRED} == {
        "-40",
        "40-80",
        "80-",
    }
    assert declare(after, ["-80", "80-c0", "c0-"], "again", 78) == after
    with pytest.raises(UsageError, match="do not cover every keyspace id once"):
        declare(before, ["-80", "80-c0"], "gap", 77)
    with pytest.raises(UsageError, match="shard names are never reused"):
        declare(after, ["-40", "40-80", "80-c0", "c0-"], "back", 77)
    with pytest.raises(UsageError, match=r"reshard move\.1 already exists"):
        declare(after, ["-80.2", "80-c0.2", "c0-.2"], "move", 77)


def test_an_unprovisioned_keyspace_has_no_topology(config: ClientConfig, keyspace: str) -> None:
    """C2: A keyspace without topics is named, and why it may have none."""
    with pytest.raises(UsageError, match=rf"{keyspace}\.topology.*no producer has run there yet"):
        read_topology(config, keyspace)
