"""Settings and status of a shard's producer. Plain values; no I/O.

`shardstream.settings.model` reads them from a file; a repr never shows a password.
"""

from dataclasses import dataclass
from enum import StrEnum

from databases.server import DatabaseServer
from event_token import Flavor
from event_token.errors import UsageError
from producers.filters.rules import FilterSettings
from producers.options import CopySettings, ProducerOptions
from producers.preflight.typed_columns import NOTHING_DECLARED, TypedColumns
from topics.kafka.client import ClientConfig
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import TableVindex
from topics.progress.record import Skipped
from topics.start.start_forms import parse_producer_start


@dataclass(frozen=True, slots=True)
class ServerSettings(DatabaseServer):
    """One of a shard's servers.

    With `read = False` nothing is streamed from it: a primary that is only asked what a replica
    wrote itself, and that gets the heartbeat rows.
    """

    read: bool = True


@dataclass(frozen=True, slots=True)
class ShardProducerSettings(ProducerOptions):
    """One shard's producer. Times in milliseconds.

    `servers`: the first usable one that keeps up is followed; another one takes over when it is
    lost, or lags behind one of the others by more than `max_replica_lag_ms`.
    `start`: where an empty log starts, in a form of `topics.start.start_forms`; None only resumes.
    `topics`: how topics that do not exist yet are created.
    `server_id`: of the replication connection; None takes a random one from a high range.
    `vindexes`: of the keyspace's topology. `typed_columns`: for MariaDB only.
    """

    keyspace: str
    shard: str
    flavor: Flavor
    servers: tuple[ServerSettings, ...]
    kafka: ClientConfig
    registry_url: str | None = None
    start: str | None = None
    server_id: int | None = None
    topics: TopicSettings = TopicSettings()  # noqa: RUF009 - frozen, and has no state
    vindexes: tuple[TableVindex, ...] = ()
    filters: FilterSettings = FilterSettings()  # noqa: RUF009 - frozen, and has no state
    typed_columns: TypedColumns = NOTHING_DECLARED
    copy: CopySettings = CopySettings()  # noqa: RUF009 - likewise

    def __post_init__(self) -> None:
        """Refuse settings that cannot work; a flavor may be given by name."""
        object.__setattr__(self, "flavor", Flavor(self.flavor))
        if self.start is not None:
            parse_producer_start(self.start)
        problems = []
        if not any(server.read for server in self.servers):
            problems.append("no server may be read from")
        names = [server.name for server in self.servers]
        if len(set(names)) < len(names):
            problems.append(f"a server is named twice ({', '.join(names)})")
        if self.server_id is not None and not 0 < self.server_id < 2**32:
            problems.append(f"server_id {self.server_id} is not in 1..4294967295")
        unclear = [name for name in sorted(self.text_as_bytes) if name.count(".") < 2]
        if unclear:
            problems.append(f"text_as_bytes {unclear[0]!r} is not database.table.column")
        if problems:
            raise UsageError(f"{self.keyspace}.{self.shard}: {'; '.join(problems)}")


class ProducerState(StrEnum):
    """What a producer is doing now."""

    STARTING = "starting"
    STREAMING = "streaming"
    IDLE = "idle"
    WAITING_FOR_KAFKA = "waiting_for_kafka"
    RECONNECTING = "reconnecting"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    """A producer's status after a commit or a change of state.

    `lag_ms`: age of the newest transaction in the log by the server's clock, 0 when caught up;
    while nothing is streamed, age of the head (watermark) by this host's clock.
    `note`: for the operator (an ignored start, the reason of a reconnect), else "". `skipped`: the
    SKIP records of the log.
    """

    shard: str
    position: str
    head_us: int
    lag_ms: int
    rows_total: int
    rows_per_s: float
    state: ProducerState
    note: str = ""
    skipped: Skipped | None = None
