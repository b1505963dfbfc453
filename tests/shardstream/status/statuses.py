"""States of a fleet and of processes, with something under way in each of them."""

import time
from dataclasses import asdict, dataclass, replace
from typing import cast

from caching.invalidating.invalidator import InvalidatorCounters, InvalidatorStatus
from event_token import StreamPosition
from producers.session.context import ProducerCounters
from resharding.apply.applier import ApplierStatus
from shardstream.status.metrics.families import SubscriberMetrics
from shardstream.status.refresh import FleetState, KeyspaceState
from spark_consumers.sink_query import SinkProgress
from tests.shardstream.status.views import shard_look
from topics.fleet.view import ApplierView, KeyspaceView, ReaderView, keyspace_view
from topics.keyspace.topology import ReshardEntry, ReshardState, ShardEntry, ShardState, Topology
from topics.progress.copy_topic import CopyState, TableCopy
from topics.progress.record import LastDdl, Skipped
from topics.reading.followed_shards import Wait
from topics.stream.subscriber import ReaderStats, StreamSubscriber

NOW_US = 1_700_000_100_000_000
SECOND_US = 1_000_000
STATUS = InvalidatorStatus(
    **asdict(InvalidatorCounters(9, 8, 7, 6, 5, 4, 3, 2)),
    state="running",
    behind_s=1.5,
    oldest_shard="-80",
    position_age_s=10.0,
)
APPLIED = ApplierStatus("80-c0", {"80-": 41}, 30, 2.5, 1_500, skips=1, aside=4)
WRITTEN = SinkProgress(90, 5_500_000, 4, "-80", 3)


def busy_keyspace() -> KeyspaceView:
    """A keyspace with a silent shard, a split whose source has ended, a copy and a reader."""
    split = ReshardEntry("split", ("80-",), ("80-c0", "c0-"), ReshardState.RUNNING.value)
    done = ReshardEntry("first", ("-",), ("-80", "80-"), ReshardState.COMPLETED.value, 7_500_000)
    targets = tuple(ShardEntry(name, ShardState.TARGET) for name in split.targets)
    shards = (ShardEntry("-80"), ShardEntry("80-"), *targets)
    copy = TableCopy("shop", "orders", "id", CopyState.COPYING, 1, 1, rows=30, rows_estimated=90)
    low = replace(shard_look(0.2), copies=(copy,))
    assert low.progress is not None
    ddl = LastDdl(6_500_000, "ALTER TABLE", "shop.orders")
    low = replace(low, progress=replace(low.progress, skipped=Skipped(2, 1), ddl=ddl))
    ended_us = time.time_ns() // 1_000 - 40 * SECOND_US
    high = replace(shard_look(41), ended_us={"split": ended_us})
    topology = Topology("commerce", 3, shards, reshards=(done, split))
    view = keyspace_view(topology, {"-80": low, "80-": high}, time.time_ns() // 1_000)
    reader = ReaderView(
        "billing",
        "-",
        2_000,
        {"-80": 5},
        100,
        3,
        9_500_000,
        "",
        "app-1",
        "0.1.0",
        0,
        (),
        "application",
    )
    applier = ApplierView("split", "80-c0", 1_500, 4_000, "app-2")
    return replace(view, readers=(reader,), appliers=(applier,))


def fleet() -> FleetState:
    """What `serve` has seen: one keyspace, and one that cannot be looked at."""
    looks = (
        KeyspaceState("commerce", busy_keyspace(), 990.0),
        KeyspaceState("other", None, None, "no broker answers"),
    )
    return FleetState(8, looks, NOW_US, 1_000.0)


READ = ReaderStats(9, 2, 1, 3)
WAIT = Wait("80- is silent", ("80-",))
PLACE = StreamPosition(3, 8_500_000, {})


@dataclass
class Reading:
    """A subscriber that waits for a shard."""

    keyspace: str = "commerce"
    stats: ReaderStats = READ
    waiting: Wait | None = WAIT
    position: StreamPosition | None = PLACE


def subscribed(reader: str = "billing", reading: Reading | None = None) -> SubscriberMetrics:
    """The metrics of a subscriber."""
    return SubscriberMetrics(cast("StreamSubscriber", reading or Reading()), reader)


def counted() -> ProducerCounters:
    """What a producer has counted."""
    counters = ProducerCounters(binlog_bytes=900, clock_ahead_us=-250_000)
    counters.rows_filtered, counters.prepared_us = 11, (9_500_000, 8_500_000)
    counters.committed(records=5, transactions=2, size=640, took_s=0.01)
    counters.committed(records=1, transactions=1, size=60, took_s=99)
    counters.reconnects["ServerLost"] += 3
    for server in ("db-a", "db-b", "db-b", "db-a"):
        counters.follow(server)
    counters.binlog_kept_s, counters.oldest_binlog_us = 86_400, 7_500_000
    counters.queue_bytes = 90
    return counters
