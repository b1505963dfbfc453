"""What an invalidator counts, and how far it is."""

from dataclasses import dataclass


@dataclass(slots=True)
class InvalidatorCounters:
    """Sums since the invalidator was started.

    `changes`: events read. `keys`: keys that they touched. `cas_retries`: buckets decided on again,
    because somebody wrote to them meanwhile. `store_rewinds`: times that a node came back older.
    """

    changes: int = 0
    keys: int = 0
    floors_raised: int = 0
    values_removed: int = 0
    floors_made: int = 0
    generations_renewed: int = 0
    cas_retries: int = 0
    store_rewinds: int = 0


@dataclass(frozen=True, slots=True)
class InvalidatorStatus:
    """One look at an invalidator.

    `state`: "standby" (another one has the lease), "running" or "waiting" (for the store or for
    Kafka, see `note`). `behind_s`: the age of the oldest shard, `oldest_shard`, by this host's
    clock. `position_age_s`: seconds since a position was last stored, None before the first time.
    """

    state: str
    changes: int
    keys: int
    floors_raised: int
    values_removed: int
    floors_made: int
    generations_renewed: int
    cas_retries: int
    store_rewinds: int
    behind_s: float | None
    oldest_shard: str | None
    position_age_s: float | None
    note: str = ""
