"""Settings and status of a shard's producer. Plain values; no I/O.

`shardstream.settings.model` reads them from a file; a repr never shows a password.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

from databases.server import OUTAGE_S, DatabaseServer, Platform
from event_token import Flavor
from event_token.errors import UsageError
from producers.clock import ClockSource, ConstantBound
from producers.filters.rules import FilterSettings
from producers.typed_columns import NOTHING_DECLARED, TypedColumns
from topics.kafka.client import ClientConfig
from topics.kafka.topic_settings import TopicSettings
from topics.keyspace.topology import TableVindex
from topics.names import ShardTopics
from topics.progress.record import Skipped
from topics.start.start_forms import parse_producer_start

# A misspelt setting that is silently ignored could lose data.
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The choices for all producers; the defaults favour 20 ms from commit to reader.

    `heartbeat_ms`: how often the head of an idle shard advances; below 10 ms it would only load
    the server. `heartbeat_rows`: when rows are written on the primary, while a replica is streamed
    from or always, which gives fresh reads a time. `commit_ms`, `commit_rows`: the shortest time
    between two commits, and the records that a commit gathers. `accept_loss_at_server_crash`:
    follow primaries whose binlog may lose its end in a crash. `metadata`: names of columns are
    logged in the binlog, or proved by the catalog. `max_clock_ahead_ms`: commit times
    further ahead of this host's clock are cut; readers look back 60 s, so no clock may be further
    ahead. `text_as_bytes`: columns (database.table.column) whose text is logged as the server's
    bytes. `max_replica_lag_ms`: a server that lags another one by more is left; each change of
    server costs about a second. `outage_s`: how long servers or brokers may be away, or refuse a
    login that has worked, or a table may be locked, before a producer or an applier ends.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    heartbeat_ms: Annotated[int, Field(ge=10, le=60_000)] = 250
    heartbeat_rows: Literal["replicas", "always"] = "replicas"
    commit_ms: Annotated[int, Field(ge=1, le=60_000)] = 20
    commit_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    max_clock_ahead_ms: Annotated[int, Field(ge=0, lt=60_000)] = 5_000
    verify_checksum: bool = True
    metadata: Literal["logged", "proved"] = "logged"
    accept_unlogged_cascades: bool = False
    accept_loss_at_server_crash: bool = False
    text_as_bytes: frozenset[str] = frozenset()
    max_replica_lag_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 10_000
    outage_s: Annotated[float, Field(ge=1, le=604_800)] = OUTAGE_S


@dataclass(frozen=True, slots=True)
class CopySettings:
    """How rows that tables already hold are copied.

    `chunk_ms`: how long one SELECT may take; chunks grow and shrink to it, up to `chunk_rows_max`.
    `tables_at_once`: tables that are copied in parallel, over one connection each. The copy waits
    while the server runs more than `max_threads_running` threads, and while another server of the
    shard lags by more than `max_replica_lag_ms` (None: not checked).
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    chunk_ms: Annotated[int, Field(ge=10, le=10_000)] = 500
    chunk_rows_max: Annotated[int, Field(ge=10, le=1_000_000)] = 100_000
    tables_at_once: Annotated[int, Field(ge=1, le=64)] = 4
    max_threads_running: Annotated[int, Field(ge=1)] | None = None
    max_replica_lag_ms: Annotated[int, Field(ge=0)] | None = None


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
    `platform`: who runs the servers; None asks each of them. `host_clock`: how far the clock of
    this host may be off, for heartbeat rows.
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
    copy: CopySettings = CopySettings()
    platform: Platform | None = None
    host_clock: ClockSource = ConstantBound()  # noqa: RUF009 - frozen, and has no state

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

    @property
    def shard_topics(self) -> ShardTopics:
        """The topics that the producer writes."""
        return ShardTopics(self.keyspace, self.shard)


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
