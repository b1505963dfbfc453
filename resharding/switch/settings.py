"""Settings and results of `switch`, `cancel` and `complete`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from resharding.server import ReshardServer
from topics.kafka.client import ClientConfig


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """A reshard to switch, cancel or complete. `server_of`: the primary of a shard.

    `accounts`: all accounts that the application writes with, as user@host. `force`: switch even
    if verify has not passed.
    """

    reshard_id: str
    keyspace: str
    server_of: Callable[[str], ReshardServer]
    accounts: tuple[str, ...]
    kafka: ClientConfig
    registry_url: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """The result. `stopped_ms`: how long writes were stopped; None if an earlier run did it.

    `lost_sources`: those that did not answer when the targets were opened, each with what was
    found; their counters, and the triggers that no other source has, are not on the targets.
    """

    hop_time_us: int | None
    stopped_ms: int | None
    lost_sources: dict[str, str] = field(default_factory=dict)
