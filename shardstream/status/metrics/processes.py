"""The metrics of processes, each from the last status that it reported."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import Metric

from caching.invalidating.invalidator import InvalidatorStatus
from event_token.compiled import IS_COMPILED
from producers.session.context import ProducerCounters
from producers.settings import ProducerState, ProducerStatus
from resharding.apply.applier import ApplierStatus
from shardstream.status.metrics.families import (
    counter,
    gauge,
    histogram,
    one,
    state_set,
)

if TYPE_CHECKING:  # with an extra
    from spark_consumers.sink_query import SinkProgress

_PRODUCER_STATES = [state.value for state in ProducerState]
_INVALIDATOR_STATES = ("standby", "running", "waiting")
_INVALIDATOR_SUMS = {
    "changes": "Changes read from the stream",
    "keys": "Keys that changes have touched",
    "floors_raised": "Floors raised to a newer change",
    "values_removed": "Values removed from the cache",
    "floors_made": "Floors made for buckets that had none",
    "generations_renewed": "Buckets whose values were all taken out of use",
    "cas_retries": "Buckets decided on again, because another process had written to them",
    "store_rewinds": "Times that a node of the store came back with older contents",
}


def producer_families(
    keyspace: str, shard: str, counters: ProducerCounters, status: ProducerStatus | None
) -> Iterator[Metric]:
    """Yield the metrics of the producer of a shard; `status` is the last one."""
    name, labels = "shardstream_producer", {"keyspace": keyspace, "shard": shard}
    state = ProducerState.STARTING if status is None else status.state
    yield state_set(
        f"{name}_state", "1 for the present state", _PRODUCER_STATES, [(labels, state.value)]
    )
    for suffix, says, value in (
        ("rows", "Records written to the log", counters.records),
        ("rows_filtered", "Rows that WHERE conditions exclude", counters.rows_filtered),
        ("statements_passed", "Changes logged as statements", counters.statements_passed),
        ("transactions", "Transactions of the database read", counters.transactions),
        ("commits", "Kafka transactions committed", counters.commits),
        ("binlog_bytes", "Bytes of the binlog decoded", counters.binlog_bytes),
        ("produced_bytes", "Bytes of records written to the log", counters.produced_bytes),
        ("server_changes", "Sessions on another server than before", counters.server_changes),
    ):
        yield one(counter(f"{name}_{suffix}", says), labels, value)
    reconnects = counter(f"{name}_reconnects", "Sessions that a fault has ended, by its class")
    for reason, count in list(counters.reconnects.items()):
        reconnects.add({**labels, "reason": reason}, count)
    yield reconnects.metric()
    says = "Sessions that faults have ended since the log last got on"
    yield one(gauge(f"{name}_restarts_in_place", says), labels, counters.restarts_in_place)
    says = "Bytes of records that Kafka's client has, and that are not committed yet"
    yield one(gauge(f"{name}_queue_bytes", says), labels, counters.queue_bytes)
    says = "The server's clock minus this host's"
    clock = gauge(f"{name}_clock_offset_seconds", says)
    yield one(clock, labels, counters.clock_ahead_us / 1e6)
    if counters.binlog_kept_s is not None:
        kept = gauge(f"{name}_binlog_kept_seconds", "For how long the server keeps binlogs")
        yield one(kept, labels, counters.binlog_kept_s)
    if counters.oldest_binlog_us is not None:
        says = "When the server began the oldest binlog that it still has"
        reach = gauge(f"{name}_oldest_binlog_timestamp_seconds", says)
        yield one(reach, labels, counters.oldest_binlog_us / 1e6)
    prepared_us = counters.prepared_us
    prepared = gauge(f"{name}_prepared_xa", "XA transactions that wait for their decision")
    yield one(prepared, labels, len(prepared_us))
    if prepared_us:
        says = "When the oldest of them was prepared"
        oldest = gauge(f"{name}_oldest_prepared_xa_timestamp_seconds", says)
        yield one(oldest, labels, min(prepared_us) / 1e6)
    compiled = gauge(f"{name}_decoder_compiled", "Whether the decoder is compiled")
    yield one(compiled, labels, float(IS_COMPILED))
    yield histogram(
        f"{name}_commit_seconds", "How long a commit to Kafka takes", labels, counters.commit_s
    )
    yield histogram(
        f"{name}_event_age_seconds",
        "From commit in the database to commit on Kafka, of each commit's newest transaction",
        labels,
        counters.event_age_s,
    )


def applier_families(
    keyspace: str, reshard_id: str, target: str, status: ApplierStatus | None
) -> Iterator[Metric]:
    """Yield the metrics of the applier of a target; `status` is the last one."""
    name = "shardstream_applier"
    labels = {"keyspace": keyspace, "reshard": reshard_id, "target": target}
    rows = counter(f"{name}_rows", "Rows applied to the target")
    yield one(rows, labels, 0 if status is None else status.rows_total)
    skips = counter(f"{name}_skips", "Skipped transactions passed with --accept-skip")
    yield one(skips, labels, 0 if status is None else status.skips)
    aside = gauge(f"{name}_rows_aside", "Rows that rows of other sources exclude for a while")
    yield one(aside, labels, 0 if status is None else status.aside)
    if status is None:
        return
    says = "Age of what the sources had in common when a change was last applied"
    yield one(gauge(f"{name}_lag_seconds", says), labels, status.behind_ms / 1_000)
    seqs = gauge(f"{name}_source_records", "Records of each source's log that are applied")
    for source, seq in status.seqs.items():
        seqs.add({**labels, "source": source}, seq)
    yield seqs.metric()


def invalidator_families(
    keyspace: str, cache: str, status: InvalidatorStatus | None
) -> Iterator[Metric]:
    """Yield the metrics of the invalidator of a cache; `status` is the last one."""
    name, labels = "shardstream_invalidator", {"keyspace": keyspace, "cache": cache}
    state = "waiting" if status is None else status.state
    yield state_set(
        f"{name}_state", "1 for the present state", _INVALIDATOR_STATES, [(labels, state)]
    )
    for field, says in _INVALIDATOR_SUMS.items():
        value = 0 if status is None else getattr(status, field)
        yield one(counter(f"{name}_{field}", says), labels, value)
    if status is not None and status.behind_s is not None:
        lag = gauge(f"{name}_lag_seconds", "Age of the shard that is furthest behind")
        yield one(lag, labels, status.behind_s)
    if status is not None and status.position_age_s is not None:
        age = gauge(f"{name}_position_age_seconds", "Since a position was last stored")
        yield one(age, labels, status.position_age_s)


def stream_families(
    clients: int, readers: int, shared: int, messages: int, refused: Mapping[int, int]
) -> Iterator[Metric]:
    """Yield the metrics of streams over HTTP. `readers`: with the `shared` ones.

    `messages`: events, or Arrow IPC streams. `refused`: requests by the status of the answer.
    """
    yield one(gauge("shardstream_streams", "Open streams"), {}, clients)
    found = gauge("shardstream_stream_readers", "Readers of Kafka behind the streams")
    found.add({"kind": "own"}, readers - shared)
    found.add({"kind": "shared"}, shared)
    yield found.metric()
    says = "Events, or Arrow IPC streams, handed over to clients"
    yield one(counter("shardstream_stream_messages", says), {}, messages)
    total = counter("shardstream_streams_refused", "Requests for a stream that were refused")
    for status, count in refused.items():
        total.add({"status": str(status)}, count)
    yield total.metric()


def sink_families(keyspace: str, sink: str, progress: "SinkProgress | None") -> Iterator[Metric]:
    """Yield the metrics of a sink's query; `sink` is the name of its command."""
    name, labels = "shardstream_sink", {"keyspace": keyspace, "sink": sink}
    rows, batch = (0, -1) if progress is None else (progress.rows, progress.batch_id)
    rejected = 0 if progress is None else progress.rejected
    is_waiting = progress is not None and bool(progress.waiting)
    yield one(gauge(f"{name}_rows", "Rows of the target"), labels, rows)
    yield one(counter(f"{name}_rejected", "Changes put aside"), labels, rejected)
    says = "Whether the query waits for a shard"
    yield one(gauge(f"{name}_waiting", says), labels, float(is_waiting))
    says = "Number of the last batch, -1 before the first"
    yield one(gauge(f"{name}_batch", says), labels, batch)
    if progress is not None and progress.frontier_us:
        says = "The target has everything older"
        frontier = gauge(f"{name}_frontier_timestamp_seconds", says)
        yield one(frontier, labels, progress.frontier_us / 1e6)
