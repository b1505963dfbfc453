"""The metrics of an invalidator's process."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from caching.invalidating.counters import InvalidatorStatus
from shardstream.status.metrics.families import counter, gauge, one, state_set

_STATES = ("standby", "running", "waiting")
_SUMS = {
    "changes": "Changes read from the stream",
    "keys": "Keys that changes have touched",
    "floors_raised": "Floors raised to a newer change",
    "values_removed": "Values removed from the cache",
    "floors_made": "Floors made for buckets that had none",
    "generations_renewed": "Buckets whose values were all taken out of use",
    "cas_retries": "Buckets decided on again, because another process had written to them",
    "store_rewinds": "Times that a node of the store came back with older contents",
}


def invalidator_families(
    keyspace: str, cache: str, status: InvalidatorStatus | None
) -> Iterator[Metric]:
    """Yield the metrics of the invalidator of a cache; `status` is the last one."""
    name, labels = "shardstream_invalidator", {"keyspace": keyspace, "cache": cache}
    state = "waiting" if status is None else status.state
    yield state_set(f"{name}_state", "1 for the present state", _STATES, [(labels, state)])
    for field, says in _SUMS.items():
        value = 0 if status is None else getattr(status, field)
        yield one(counter(f"{name}_{field}", says), labels, value)
    if status is not None and status.behind_s is not None:
        lag = gauge(f"{name}_lag_seconds", "Age of the shard that is furthest behind")
        yield one(lag, labels, status.behind_s)
    if status is not None and status.position_age_s is not None:
        age = gauge(f"{name}_position_age_seconds", "Since a position was last stored")
        yield one(age, labels, status.position_age_s)
