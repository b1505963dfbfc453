"""The metrics of an applier's process."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from resharding.apply.applier_status import ApplierStatus
from shardstream.status.metrics.families import counter, gauge, one


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
    if status is None:
        return
    says = "Age of what the sources had in common when a change was last applied"
    yield one(gauge(f"{name}_lag_seconds", says), labels, status.behind_ms / 1_000)
    seqs = gauge(f"{name}_source_records", "Records of each source's log that are applied")
    for source, seq in status.seqs.items():
        seqs.add({**labels, "source": source}, seq)
    yield seqs.metric()
