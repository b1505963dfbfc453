"""Splits of shard `80-`, as shardstream writes them (with marks) and as other tools do them."""

from collections.abc import Sequence
from dataclasses import replace

from tests.topics.shard_writer import START_US, Reshard, ShardWriter, Writers
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import declare
from topics.keyspace.topology import ReshardEntry, ShardEntry, ShardState, Topology, update_topology
from topics.progress.record import MarkKind
from topics.records.vevent import TokenText, VEvent

Seen = tuple[int, str, int]
FAR_US = 60_000_000
BEGIN, END = MarkKind.BEGIN, MarkKind.END
SPLIT = Reshard("r1", ("80-",), ("80-c0", "c0-"), 40_000)
SWITCHED_US = 5_000_000
# A merge whose sources end minutes apart.
SLOW_US = 200_000_000
BEHIND_OFFSET = 103  # of the first record behind its first END
SLOW_MERGE = Reshard("r1", ("-80", "80-"), ("-",), SLOW_US + 10_000)
# What a reader of `write_split` must get of the sources and of the targets: shard, seq and
# possible_duplicate. 80-c0 has a hole: its seq 3 came with the source.
SOURCE_ROWS = [("80-", 1, False), ("80-", 2, False)]
TARGET_ROWS = [
    ("80-c0", 2, True),
    ("c0-", 1, True),
    ("80-c0", 4, True),  # its origin is new, but may stand for older changes too
    ("80-c0", 5, False),
    ("80-c0", 6, False),
    ("c0-", 2, False),
]


def seen(events: Sequence[VEvent]) -> list[Seen]:
    """What orders and identifies events."""
    return [(e.timestamp_us, e.shard, e.seq) for e in events]


def begin_split(writers: Writers) -> list[ShardWriter]:
    """Write what precedes a split of 80-, of which five rows can be read."""
    left, source = writers("-80", "80-")
    left.commit((0, 2), (20_000, 1))
    source.commit((1_000, 2), (30_000, 2))
    left.heartbeat(31_000)
    source.heartbeat(31_000)
    return [left, source]


def finish_split(left: ShardWriter, source: ShardWriter, targets: Writers) -> list[Seen]:
    """Write the rest; return what a reader of all must get."""
    return _finish(left, source, targets("80-c0", "c0-"))


def split(writers: Writers, targets: Writers) -> tuple[list[ShardWriter], list[Seen]]:
    """Shard 80- is split while -80 continues; return what a reader of all must get."""
    left, source = writers("-80", "80-")
    low, high = targets("80-c0", "c0-")
    left.commit((0, 2), (20_000, 1))
    source.commit((1_000, 2), (30_000, 2))
    return [left, source, low, high], _finish(left, source, [low, high])


def _finish(left: ShardWriter, source: ShardWriter, targets: Sequence[ShardWriter]) -> list[Seen]:
    for target in targets:
        # Copied rows, also with times after the hop; readers have them from the source.
        target.commit((2_000, 3), (45_000, 1))
    source.mark(35_000, END, SPLIT)
    genuine = [*source.written]
    left.commit((50_000, 1))
    for target in targets:
        target.mark(46_000, BEGIN, SPLIT)
        target.commit((47_000, 1), (70_000, 2))
        genuine += target.written[4:]
    left.commit((60_000, 2))
    for writer in (left, *targets):
        writer.heartbeat(FAR_US)
    return sorted(seen([*left.written, *genuine]))


def begin_slow_merge(running: ShardWriter, ended: ShardWriter) -> None:
    """One source ends; an aborted transaction and records follow, and the other one goes on."""
    running.commit((0, 2))
    # Its first record: a search by time finds the marker of the first commit, which is of today.
    ended.mark(35_000, END, SLOW_MERGE)
    ended.producer.begin_transaction()
    for _ in range(100):
        ended.producer.produce(ended.topics.log, b"aborted", partition=0)
    ended.producer.flush()
    ended.producer.abort_transaction()
    ended.commit((SLOW_US // 2, 1))
    ended.commit((SLOW_US - 20_000, 1))
    for writer in (running, ended):
        writer.heartbeat(SLOW_US - 20_000)


def finish_slow_merge(running: ShardWriter, ended: ShardWriter, target: ShardWriter) -> list[Seen]:
    """The other source ends, and the target begins; return what a reader of all must get."""
    running.mark(SLOW_US, END, SLOW_MERGE)
    target.mark(SLOW_US + 20_000, BEGIN, SLOW_MERGE)
    target.commit((SLOW_US + 30_000, 2))
    target.heartbeat(SLOW_US + FAR_US)
    return sorted(seen([*running.written, *ended.written[:1], *target.written]))


def copied(target: ShardWriter, at_us: int, origin: VEvent | None) -> VEvent:
    """A row that filtered replication wrote, with its origin where the tool says it."""
    event = target.row(at_us)
    text = event.token_text
    source = None if origin is None else origin.token_text
    token = TokenText(text.timestamp_us, text.shard, text.position, source)
    return replace(event, token_text=token)


def write_split(
    left: ShardWriter, source: ShardWriter, low: ShardWriter, high: ShardWriter
) -> None:
    """`80-` was copied to two shards; its server went away before its last row could be read."""
    source.commit((0, 1), (3_000_000, 1), (4_000_000, 1))
    source.heartbeat(4_000_000)  # the last row's cell stays open
    seen_one, seen_two, unseen = source.written
    low.commit_events(
        [
            copied(low, 10_000, seen_one),
            copied(low, 3_005_000, None),
            copied(low, 3_010_000, seen_two),
            copied(low, 4_010_000, unseen),
            low.row(5_000_000),
            low.row(5_500_000),
        ]
    )
    high.commit_events([copied(high, 3_500_000, None), high.row(6_000_000)])
    for writer in (left, low, high):
        writer.heartbeat(FAR_US)


def write_slow_split(
    left: ShardWriter, source: ShardWriter, low: ShardWriter, high: ShardWriter
) -> None:
    """`80-` took a write after the time at which its targets are said to have begun."""
    source.commit((SWITCHED_US + 200_000, 1))
    source.heartbeat(SWITCHED_US + 400_000)
    low.commit_events(
        [low.row(SWITCHED_US + 100_000), copied(low, SWITCHED_US + 300_000, source.written[0])]
    )
    low.commit((SWITCHED_US + 500_000, 1))
    for writer in (left, low, high):
        writer.heartbeat(FAR_US)


def declare_split(config: ClientConfig, keyspace: str) -> None:
    """Say that another tool has split `80-`."""
    update_topology(
        config,
        keyspace,
        lambda topology: declare(
            topology or Topology(keyspace, 0, ()),
            ["-80", "80-c0", "c0-"],
            "r1",
            START_US + SWITCHED_US,
        ),
    )


def entry(reshard_id: str, sources: str, targets: str, hop_time_us: int | None) -> ReshardEntry:
    """A reshard as the topology keeps it; shards stand apart by spaces."""
    return ReshardEntry(
        reshard_id, tuple(sources.split()), tuple(targets.split()), "COMPLETED", hop_time_us
    )


def topology_after_split(keyspace: str) -> Topology:
    """What the switch of `split` leaves in the topology."""
    serving = tuple(ShardEntry(shard) for shard in ("-80", "80-c0", "c0-"))
    hop_us = START_US + SPLIT.hop_us
    return Topology(
        keyspace,
        1,
        (*serving, ShardEntry("80-", ShardState.RETIRED)),
        reshards=(entry("r1", "80-", "80-c0 c0-", hop_us),),
    )
