"""What an operator may choose for producers and their copies: defaults and bounds, once.

`shardstream.settings` reads these from a file and checks the bounds, which stand in the types.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field

# A misspelt setting that is silently ignored could lose data.
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """The choices for all producers; the defaults favour 20 ms from commit to reader.

    `heartbeat_ms`: how often the head of an idle shard advances; below 10 ms it would only load
    the server. `heartbeat_rows`: when rows are written on the primary, while a replica is streamed
    from or always, which gives fresh reads a time. `commit_ms`, `commit_rows`: the shortest time
    between two commits, and the records that a commit gathers. `accept_loss_at_server_crash`:
    follow primaries whose binlog may lose its end in a crash. `max_clock_ahead_ms`: commit times
    further ahead of this host's clock are cut; readers look back 60 s, so no clock may be further
    ahead. `text_as_bytes`: columns (database.table.column) whose text is logged as the server's
    bytes. `max_replica_lag_ms`: a server that lags another one by more is left; each change of
    server costs about a second.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    heartbeat_ms: Annotated[int, Field(ge=10, le=60_000)] = 250
    heartbeat_rows: Literal["replicas", "always"] = "replicas"
    commit_ms: Annotated[int, Field(ge=1, le=60_000)] = 20
    commit_rows: Annotated[int, Field(ge=1, le=1_000_000)] = 5_000
    max_clock_ahead_ms: Annotated[int, Field(ge=0, lt=60_000)] = 5_000
    verify_checksum: bool = True
    accept_unlogged_cascades: bool = False
    accept_loss_at_server_crash: bool = False
    text_as_bytes: frozenset[str] = frozenset()
    max_replica_lag_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 10_000


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
