"""What `switch`, `cancel` and `complete` are told, and what they tell."""

from collections.abc import Callable
from dataclasses import dataclass

from resharding.server import ReshardServer
from topics.kafka.client import ClientConfig


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """A reshard to switch, cancel or complete. `server_of`: the primary of a shard.

    `accounts`: all that the application writes with, as user@host. `force`: switch without a clean
    verify.
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
    """How it ended. `stopped_ms`: how long writes were stopped, None where a former run did it."""

    hop_time_us: int | None
    stopped_ms: int | None
