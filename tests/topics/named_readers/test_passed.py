"""Which readers a shard has to wait for before its topics can go."""

import pytest

from event_token import KeyRange, ShardPosition, StreamPosition
from topics.keyspace.topology import ReshardEntry, ShardEntry, ShardState, Topology
from topics.named_readers import NamedReader, ReaderRecord, not_passed

# `-` was split into -80 and 80-, and then 80- into 80-c0 and c0-; a merge of both was cancelled.
TOPOLOGY = Topology(
    "commerce",
    2,
    (
        *(ShardEntry(shard) for shard in ("-80", "80-c0", "c0-")),
        *(ShardEntry(shard, ShardState.RETIRED) for shard in ("-", "80-", "80-.2")),
    ),
    reshards=(
        ReshardEntry("r1", ("-",), ("-80", "80-"), "COMPLETED", 10_000),
        ReshardEntry("r2", ("80-",), ("80-c0", "c0-"), "COMPLETED", 20_000),
        ReshardEntry("r3", ("80-c0", "c0-"), ("80-.2",), "CANCELLED"),
    ),
)


def report(name: str, shards: tuple[str, ...], key_range: str = "-") -> ReaderRecord:
    """A reader that reads these shards."""
    position = StreamPosition(0, 0, {shard: ShardPosition(1, 1, None) for shard in shards})
    return ReaderRecord(name, name, position, KeyRange.parse(key_range), "host", "1", 0, 0)


BEFORE = NamedReader(report("before", ("-",)))
BETWEEN = NamedReader(report("between", ("-80", "80-")))
AFTER = NamedReader(report("after", ("-80", "80-c0", "c0-")))
LOW = NamedReader(report("low", ("-",), "-40"))
TWICE = NamedReader(AFTER.last, (report("twice", ("-80", "80-")),))


@pytest.mark.parametrize(
    ("shard", "readers", "expected"),
    [
        ("80-", (AFTER,), []),
        ("80-", (BETWEEN, AFTER), ["between"]),
        ("80-", (BEFORE,), ["before"]),  # it comes to 80- on its way
        ("80-", (LOW,), []),  # it never reads 80-
        ("80-", (TWICE,), ["twice"]),  # the other process of the name counts too
        ("-", (BEFORE, BETWEEN, AFTER, LOW), ["before", "low"]),
        ("80-.2", (BEFORE, BETWEEN, AFTER), []),  # nobody has ever read it
    ],
)
def test_a_shard_waits_for_readers_that_come_to_it(
    shard: str, readers: tuple[NamedReader, ...], expected: list[str]
) -> None:
    """Those that read it or a shard before it, in its key range; not those that have hopped."""
    assert [found.name for found in not_passed(readers, TOPOLOGY, shard)] == expected
