"""The metrics of a Spark query that writes a sink."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from shardstream.status.metrics.families import counter, gauge, one
from spark_consumers.sink_query.run import SinkProgress


def sink_families(keyspace: str, sink: str, progress: SinkProgress | None) -> Iterator[Metric]:
    """Yield the metrics of a sink's query; `sink` is the name of its command."""
    name, labels = "shardstream_sink", {"keyspace": keyspace, "sink": sink}
    found = progress or SinkProgress(0, None, -1, "")
    yield one(gauge(f"{name}_rows", "Rows of the target"), labels, found.rows)
    yield one(counter(f"{name}_rejected", "Changes put aside"), labels, found.rejected)
    waits = gauge(f"{name}_waiting", "Whether the query waits for a shard")
    yield one(waits, labels, float(bool(found.waiting)))
    batch = gauge(f"{name}_batch", "Number of the last batch, -1 before the first")
    yield one(batch, labels, found.batch_id)
    if found.frontier_us:
        frontier = gauge(f"{name}_frontier_timestamp_seconds", "The target has everything older")
        yield one(frontier, labels, found.frontier_us / 1e6)
