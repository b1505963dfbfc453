"""The fleet's metrics: what `shardstream serve` sees in the topics, of producers dead or alive."""

import time
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client.core import Metric

from shardstream.status.metrics.families import counter, gauge, state_set
from shardstream.status.refresh import FleetState
from topics.fleet.view import KeyspaceView, ShardCondition
from topics.keyspace.topology import ReshardState
from topics.progress.copy_topic import CopyState

_US = 1e6
# A reshard whose sources have ended, and whose targets have not begun.
ENDED = "ended"
_RESHARD_STATES = (ReshardState.RUNNING.value.lower(), ENDED, ReshardState.SWITCHED.value.lower())


def fleet_families(state: FleetState) -> Iterator[Metric]:
    """Yield the metrics of all keyspaces."""
    views = [each.view for each in state.keyspaces if each.view is not None]
    yield from _watch(state)
    yield from _shards(views)
    yield from _frontiers(views)
    yield from _copies(views)
    yield from _reshards(views)
    yield from _readers(views)


def _watch(state: FleetState) -> Iterable[Metric]:
    up = gauge("shardstream_watch_up", "Whether the keyspace's topics were last read successfully")
    at = gauge("shardstream_watch_timestamp_seconds", "When the keyspace's topics were last read")
    for each in state.keyspaces:
        labels = {"keyspace": each.keyspace}
        up.add(labels, float(each.seen_s is not None and not each.error))
        if each.seen_s is not None:
            at.add(labels, state.at_us / _US - (state.turned_s - each.seen_s))
    return (up.metric(), at.metric())


def _shards(views: Sequence[KeyspaceView]) -> Iterator[Metric]:
    head = gauge("shardstream_shard_head_timestamp_seconds", "No later record is older")
    progress = gauge(
        "shardstream_shard_progress_timestamp_seconds", "When the producer last wrote anything"
    )
    lag = gauge(
        "shardstream_shard_source_lag_seconds",
        "Age of the newest transaction when the producer read it, 0 when caught up",
    )
    records = counter("shardstream_shard_records", "Records of the log since its beginning")
    skips = counter("shardstream_shard_skips", "Transactions that operators have skipped")
    ddl = gauge("shardstream_shard_ddl_timestamp_seconds", "When the last DDL was committed")
    server = gauge("shardstream_shard_server_info", "The server that the producer streams from")
    retention = gauge(
        "shardstream_shard_retention_seconds", "For how long the log keeps a record, as Kafka says"
    )
    states = []
    for view in views:
        for shard in view.shards:
            labels = {"keyspace": view.keyspace, "shard": shard.shard}
            states.append((labels, shard.condition.value))
            records.add(labels, shard.records)
            skips.add(labels, shard.skipped.count if shard.skipped else 0)
            if shard.ddl is not None:
                ddl.add(labels, shard.ddl.at_us / _US)
            if shard.retention_ms is not None:
                retention.add(labels, shard.retention_ms / 1_000)
            if shard.watermark_us is None or shard.written_us is None:
                continue
            head.add(labels, shard.watermark_us / _US)
            progress.add(labels, shard.written_us / _US)
            lag.add(labels, shard.source_lag_ms / 1_000)
            server.add({**labels, "server": shard.server, "flavor": shard.flavor}, 1)
    yield from (f.metric() for f in (head, progress, lag, records, skips, ddl, server, retention))
    conditions = [condition.value for condition in ShardCondition]
    yield state_set("shardstream_shard_state", "1 for the shard's state", conditions, states)


def _frontiers(views: Sequence[KeyspaceView]) -> Iterable[Metric]:
    frontier = gauge(
        "shardstream_frontier_timestamp_seconds", "Readers can have everything that is older"
    )
    held = gauge("shardstream_frontier_held_by", "1 for each shard that holds all readers back")
    epoch = gauge("shardstream_topology_epoch", "Reshards that have switched")
    hop = gauge("shardstream_hop_timestamp_seconds", "Time of the last hop of readers")
    for view in views:
        keyspace = {"keyspace": view.keyspace}
        epoch.add(keyspace, view.epoch)
        if view.frontier_us is not None:
            frontier.add(keyspace, view.frontier_us / _US)
        if view.hops:
            hop.add(keyspace, (view.hops[-1].hop_time_us or 0) / _US)
        for shard in view.shards:
            held.add({**keyspace, "shard": shard.shard}, float(shard.shard in view.held_by))
    return (frontier.metric(), held.metric(), epoch.metric(), hop.metric())


def _copies(views: Sequence[KeyspaceView]) -> Iterator[Metric]:
    rows = counter("shardstream_copy_rows", "Rows that a copy has written to the log")
    expected = gauge("shardstream_copy_rows_expected", "Rows of the table, by the server's guess")
    states = []
    for view in views:
        for shard, copy in view.copies:
            labels = {"keyspace": view.keyspace, "shard": shard, "table": copy.name}
            rows.add(labels, copy.rows)
            expected.add(labels, copy.rows_estimated)
            states.append((labels, copy.state.value))
    yield rows.metric()
    yield expected.metric()
    shown = [CopyState.COPYING.value, CopyState.PAUSED.value, CopyState.FAILED.value]
    yield state_set("shardstream_copy_state", "1 for the copy's state", shown, states)


def _reshards(views: Sequence[KeyspaceView]) -> Iterator[Metric]:
    stopped = gauge(
        "shardstream_reshard_writes_stopped_seconds",
        "For how long writes of sources have been stopped, 0 while they are not",
    )
    lag = gauge(
        "shardstream_reshard_target_lag_seconds",
        "Age of what a target has from all its sources, as its applier has reported",
    )
    states = []
    for view in views:
        since_us = {stop.reshard_id: stop.since_us for stop in view.stopped}
        for entry in view.reshards:
            labels = {"keyspace": view.keyspace, "reshard": entry.reshard_id}
            ended_us = since_us.get(entry.reshard_id)
            states.append((labels, entry.state.lower() if ended_us is None else ENDED))
            stopped.add(labels, 0 if ended_us is None else max(0.0, time.time() - ended_us / _US))
        for applier in view.appliers:
            labels = {"keyspace": view.keyspace, "reshard": applier.reshard_id}
            lag.add({**labels, "target": applier.target}, applier.behind_ms / 1_000)
    yield stopped.metric()
    yield lag.metric()
    yield state_set(
        "shardstream_reshard_state",
        "1 for the reshard's state; ended: END is in the log of a source, and no decision follows",
        _RESHARD_STATES,
        states,
    )


def _readers(views: Sequence[KeyspaceView]) -> Iterable[Metric]:
    position = gauge(
        "shardstream_reader_position_timestamp_seconds", "The reader has had everything older"
    )
    epoch = gauge("shardstream_reader_epoch", "Hops that the reader has made")
    behind = gauge("shardstream_reader_events_behind", "Records of the log beyond the reader")
    for view in views:
        for reader in view.readers:
            labels = {"keyspace": view.keyspace, "reader": reader.name}
            position.add(labels, reader.frontier_us / _US)
            epoch.add(labels, reader.epoch)
            for shard, events in reader.events_behind.items():
                behind.add({**labels, "shard": shard}, events)
    return (position.metric(), epoch.metric(), behind.metric())
