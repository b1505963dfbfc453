import re
import time
from collections.abc import Iterable
from typing import cast

from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.parser import text_string_to_metric_families

from databases.errors import LoginRefused
from event_token.errors import Rebuild, Retry
from producers.copy.definition import ChunkSpoiled
from producers.errors import ClockUnknown, StopPassed
from producers.session.context import Histogram, ProducerCounters
from producers.settings import ProducerState, ProducerStatus
from shardstream.status.metrics.families import SubscriberMetrics, scrape
from shardstream.status.metrics.fleet import fleet_families
from shardstream.status.metrics.processes import (
    applier_families,
    invalidator_families,
    producer_families,
    sink_families,
    stream_families,
)
from tests.repository import ROOT
from tests.shardstream.status.statuses import (
    APPLIED,
    NOW_US,
    SECOND_US,
    STATUS,
    WRITTEN,
    Reading,
    counted,
    fleet,
    subscribed,
)
from topics.errors import NoBrokerAnswers
from topics.kafka.errors import Fenced, LoginEnded, TopicMissing
from topics.stream.subscriber import StreamSubscriber

PAGE = ROOT / "docs" / "monitoring.md"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(families: Iterable[Metric]) -> Samples:
    """All samples that a scrape gets, by name and labels."""
    text = scrape(lambda: families)().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    """One of them."""
    return found[name, frozenset(labels.items())]


def test_the_fleet_is_told_from_its_topics() -> None:
    """A dead producer's shard has a state, a time of its last progress, and holds readers back."""
    found = samples(fleet_families(fleet()))

    shard = {"keyspace": "commerce", "shard": "80-"}
    assert value(found, "shardstream_watch_up", keyspace="commerce") == 1
    assert value(found, "shardstream_watch_up", keyspace="other") == 0
    assert value(found, "shardstream_watch_timestamp_seconds", keyspace="commerce") == (
        NOW_US / SECOND_US - 10
    )
    assert value(found, "shardstream_shard_state", **shard, state="silent") == 1
    assert value(found, "shardstream_shard_state", **shard, state="serving") == 0
    assert value(found, "shardstream_frontier_held_by", **shard) == 1
    written_s = value(found, "shardstream_shard_progress_timestamp_seconds", **shard)
    assert 41 <= time.time() - written_s < 41 + 600
    assert value(found, "shardstream_shard_records_total", **shard) == 7
    server = {**shard, "server": "db-a:3306", "flavor": "mysql"}
    assert value(found, "shardstream_shard_server_info", **server) == 1
    assert value(found, "shardstream_shard_skips_total", keyspace="commerce", shard="-80") == 2
    altered = {"keyspace": "commerce", "shard": "-80"}
    assert value(found, "shardstream_shard_ddl_timestamp_seconds", **altered) == 6.5
    assert value(found, "shardstream_hop_timestamp_seconds", keyspace="commerce") == 7.5


def test_what_is_under_way_is_told() -> None:
    """A copy with its size, a reshard whose sources have ended, a reader with its lag."""
    found = samples(fleet_families(fleet()))

    copy = {"keyspace": "commerce", "shard": "-80", "table": "shop.orders"}
    assert value(found, "shardstream_copy_rows_total", **copy) == 30
    assert value(found, "shardstream_copy_rows_expected", **copy) == 90
    assert value(found, "shardstream_copy_state", **copy, state="copying") == 1
    reshard = {"keyspace": "commerce", "reshard": "split"}
    assert value(found, "shardstream_reshard_state", **reshard, state="ended") == 1
    assert value(found, "shardstream_reshard_state", **reshard, state="running") == 0
    assert value(found, "shardstream_reshard_writes_stopped_seconds", **reshard) >= 40
    target = {**reshard, "target": "80-c0"}
    assert value(found, "shardstream_reshard_target_lag_seconds", **target) == 1.5
    reader = {"keyspace": "commerce", "reader": "billing"}
    assert value(found, "shardstream_reader_position_timestamp_seconds", **reader) == 9.5
    assert value(found, "shardstream_reader_events_behind", **reader, shard="-80") == 5


def test_a_producers_counters_are_sums_over_its_sessions() -> None:
    """Commits with their times, faults by class, changes of server, the clock's offset."""
    status = ProducerStatus("-80", "", 0, 0, 6, 0.0, ProducerState.RECONNECTING, "gone")

    found = samples(producer_families("commerce", "-80", counted(), status))

    shard = {"keyspace": "commerce", "shard": "-80"}
    assert value(found, "shardstream_producer_queue_bytes", **shard) == 90
    assert value(found, "shardstream_producer_rows_total", **shard) == 6
    assert value(found, "shardstream_producer_transactions_total", **shard) == 3
    assert value(found, "shardstream_producer_produced_bytes_total", **shard) == 700
    assert value(found, "shardstream_producer_binlog_bytes_total", **shard) == 900
    assert value(found, "shardstream_producer_server_changes_total", **shard) == 2
    assert value(found, "shardstream_producer_binlog_kept_seconds", **shard) == 86_400
    reach = "shardstream_producer_oldest_binlog_timestamp_seconds"
    assert value(found, reach, **shard) == 7.5
    assert value(found, "shardstream_producer_clock_offset_seconds", **shard) == -0.25
    assert value(found, "shardstream_producer_state", **shard, state="reconnecting") == 1
    assert value(found, "shardstream_producer_rows_filtered_total", **shard) == 11
    assert value(found, "shardstream_producer_prepared_xa", **shard) == 2
    oldest = "shardstream_producer_oldest_prepared_xa_timestamp_seconds"
    assert value(found, oldest, **shard) == 8.5
    faults = value(found, "shardstream_producer_reconnects_total", **shard, reason="ServerLost")
    assert faults == 3
    buckets = [
        value(found, "shardstream_producer_commit_seconds_bucket", **shard, le=le)
        for le in ("0.005", "0.01", "30.0", "+Inf")
    ]
    assert buckets == [0, 1, 1, 2]
    assert value(found, "shardstream_producer_commit_seconds_sum", **shard) == 99.01


def test_faults_are_counted_from_zero_on() -> None:
    """Every fault that ends a session has its count before the first one: increase() needs it."""
    found = samples(producer_families("commerce", "-80", ProducerCounters(), None))

    by_reason = {
        dict(labels)["reason"]: count
        for (name, labels), count in found.items()
        if name == "shardstream_producer_reconnects_total"
    }
    modules = ("databases.", "producers.")
    ours = {each for each in _below(Rebuild, Retry) if each.__module__.startswith(modules)}
    # The copier's own, and those that end no session.
    others = _below(ChunkSpoiled) | {ChunkSpoiled, StopPassed, ClockUnknown}
    logins = {LoginEnded, LoginRefused}
    wanted = (ours - others) | logins | {Fenced, Rebuild, Retry, TopicMissing, NoBrokerAnswers}
    assert by_reason == dict.fromkeys((fault.__name__ for fault in wanted), 0)


def _below(*classes: type[Exception]) -> set[type[Exception]]:
    """All classes that derive from these, in any number of steps."""
    found: set[type[Exception]] = set()
    for each in classes:
        found |= {*each.__subclasses__(), *_below(*each.__subclasses__())}
    return found


def test_a_bound_belongs_to_its_bucket() -> None:
    """As `le`, less or equal, says."""
    seconds = Histogram((1.0, 2.0))

    for each in (0.5, 1.0, 1.5, 2.0, 2.5):
        seconds.observe(each)

    assert seconds.counts == [2, 2, 1]
    assert seconds.sum == 7.5


def test_other_processes_tell_their_last_status() -> None:
    """Appliers, invalidators and sinks: before their first status, too."""
    applier = samples(applier_families("commerce", "split", "80-c0", APPLIED))
    cache = samples(invalidator_families("commerce", "main", STATUS))
    sink = samples(sink_families("commerce", "changelog", WRITTEN))

    target = {"keyspace": "commerce", "reshard": "split", "target": "80-c0"}
    assert value(applier, "shardstream_applier_rows_total", **target) == 30
    assert value(applier, "shardstream_applier_lag_seconds", **target) == 1.5
    assert value(applier, "shardstream_applier_rows_aside", **target) == 4
    assert value(applier, "shardstream_applier_source_records", **target, source="80-") == 41
    named = {"keyspace": "commerce", "cache": "main"}
    assert value(cache, "shardstream_invalidator_state", **named, state="running") == 1
    assert value(cache, "shardstream_invalidator_values_removed_total", **named) == 6
    assert value(cache, "shardstream_invalidator_lag_seconds", **named) == 1.5
    query = {"keyspace": "commerce", "sink": "changelog"}
    assert value(sink, "shardstream_sink_frontier_timestamp_seconds", **query) == 5.5
    assert value(sink, "shardstream_sink_waiting", **query) == 1
    assert value(sink, "shardstream_sink_rejected_total", **query) == 3
    for early in (
        applier_families("commerce", "split", "80-c0", None),
        invalidator_families("commerce", "main", None),
        sink_families("commerce", "changelog", None),
        producer_families("commerce", "-80", ProducerCounters(), None),
    ):
        assert samples(early)


def test_an_applications_registry_takes_the_metrics_of_its_subscribers() -> None:
    """Two of them side by side: what they have read, whom they wait for, where they are."""
    registry = CollectorRegistry()
    subscriber = cast("StreamSubscriber", Reading())
    registry.register(SubscriberMetrics(subscriber, "billing"))
    registry.register(subscribed("idle", Reading(waiting=None, position=None)))

    found = samples(registry.collect())

    billing = {"keyspace": "commerce", "reader": "billing"}
    for name, expected in (("events", 9), ("late", 2), ("possible_duplicates", 1), ("hops", 3)):
        assert value(found, f"shardstream_subscriber_{name}_total", **billing) == expected
    assert value(found, "shardstream_subscriber_waiting", **billing, shard="80-") == 1
    assert value(found, "shardstream_subscriber_position_timestamp_seconds", **billing) == 8.5
    idle = {"keyspace": "commerce", "reader": "idle"}
    assert value(found, "shardstream_subscriber_events_total", **idle) == 9


def test_bytes_wait_until_they_are_committed() -> None:
    """The queue is empty after a commit, and in a new session, whose predecessor's are aborted."""
    counters = ProducerCounters(queue_bytes=70)

    counters.committed(records=1, transactions=1, size=70, took_s=0.1)
    after_commit, counters.queue_bytes = counters.queue_bytes, 30
    counters.follow("db-a")

    assert [after_commit, counters.queue_bytes] == [0, 0]


def test_every_metric_is_documented() -> None:
    """The page lists what a scrape may get, and nothing else."""
    status = ProducerStatus("-80", "", 0, 0, 6, 0.0, ProducerState.IDLE)
    families = [
        *fleet_families(fleet()),
        *producer_families("commerce", "-80", counted(), status),
        *applier_families("commerce", "split", "80-c0", APPLIED),
        *invalidator_families("commerce", "main", STATUS),
        *sink_families("commerce", "changelog", WRITTEN),
        *stream_families(12, 3, 1, 700, {429: 2}),
        *subscribed().collect(),
    ]
    told = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name, _ in samples(families)
        if name.startswith("shardstream_")
    }
    listed = set(re.findall(r"^\| `(shardstream_\w+)", PAGE.read_text(), re.MULTILINE))

    assert listed == told
