"""The metrics of a producer's process: what its topics do not tell."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from event_token.compiled import IS_COMPILED
from producers.session.counters import ProducerCounters
from producers.settings import ProducerState, ProducerStatus
from shardstream.status.metrics.families import (
    counter,
    gauge,
    histogram,
    one,
    state_set,
)

_STATES = [state.value for state in ProducerState]


def producer_families(
    keyspace: str, shard: str, counters: ProducerCounters, status: ProducerStatus | None
) -> Iterator[Metric]:
    """Yield the metrics of the producer of a shard; `status` is the last one."""
    name, labels = "shardstream_producer", {"keyspace": keyspace, "shard": shard}
    state = ProducerState.STARTING if status is None else status.state
    yield state_set(f"{name}_state", "1 for the present state", _STATES, [(labels, state.value)])
    for suffix, says, value in (
        ("rows", "Records written to the log", counters.records),
        ("rows_filtered", "Rows that WHERE conditions exclude", counters.rows_filtered),
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
