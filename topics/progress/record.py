"""The progress record of a shard log: checkpoint, heartbeat, watermark and time index in one.

Its `head_us`, the head, is the watermark of the shard: no later record is older.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

# The grid of ticks and frontiers: whole milliseconds, so that cuts by token time agree with those
# by Kafka's record timestamps, and coarse enough for at most 100 ticks per second and shard.
GRID_US = 10_000

# Commit times may be ahead of the head by as much as producers let a server's clock be ahead.
# Records up to a head that is older than some time by more than this are older than that time.
CLOCK_AHEAD_US_MAX = 60_000_000


def cell_start_us(timestamp_us: int) -> int:
    """Return the start of the grid cell that contains `timestamp_us`."""
    return timestamp_us - timestamp_us % GRID_US


@dataclass(frozen=True, slots=True)
class Tick:
    """Records below `offset` are older than `timestamp_us` (a cell's start), later ones are not."""

    timestamp_us: int
    offset: int


class MarkKind(StrEnum):
    """The kind of a reshard's mark."""

    BEGIN = "BEGIN"
    END = "END"
    CANCEL = "CANCEL"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark of a reshard at `offset` of this log, with everything a reader needs to hop."""

    kind: MarkKind
    offset: int
    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    hop_time_us: int | None

    def journal_text(self) -> str:
        """Return the mark's row of the journal as JSON, the statement of its JOURNAL record."""
        return json.dumps(
            {
                "reshard_id": self.reshard_id,
                "kind": "CANCELLED" if self.kind is MarkKind.CANCEL else self.kind.value,
                "sources": list(self.sources),
                "targets": list(self.targets),
                "hop_time_us": self.hop_time_us,
            }
        )


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last database transaction that a log has read, and its place on one server.

    `commit_us`: the raw commit time. `server`: the UUID of the server that it was read from
    (MariaDB: its server id); `binlog_pos`: where the transaction begins in `binlog_file` there.
    """

    gtid: str
    commit_us: int
    server: str
    binlog_file: str
    binlog_pos: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """The SKIP records of a log: how many there are, and when (host clock) the last was written."""

    count: int
    last_us: int

    def __str__(self) -> str:
        """As status lines say it."""
        moment = datetime.fromtimestamp(self.last_us / 1e6, UTC).isoformat(timespec="seconds")
        word = "skip" if self.count == 1 else "skips"
        return f"{self.count} {word} by operators, the last at {moment.replace('+00:00', 'Z')}"


@dataclass(frozen=True, slots=True)
class LastDdl:
    """The last DDL record of a log: its commit time, and what it was about.

    `kind` is in reserved words alone, such as ALTER TABLE. `tables`: `database.table`, or a
    database; "" where that cannot be told.
    """

    at_us: int
    kind: str
    tables: str

    def __str__(self) -> str:
        """As status lines say it."""
        return f"{self.kind} {self.tables}".rstrip()


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a producer has stopped: when (host clock), the class of the error, and its text.

    `restarts`: it has not stopped, but has started over this many times in one place; else 0.
    """

    at_us: int
    error: str
    text: str
    restarts: int = 0

    @property
    def condition(self) -> str:
        """What the producer does."""
        return "starts over" if self.restarts else "has stopped"

    def __str__(self) -> str:
        """As status lines say it."""
        before = f"{self.restarts} restarts in one place: " if self.restarts else ""
        return f"{before}{self.text} [{self.error}]"


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress record. A heartbeat covers no records: its `last_seq` is `first_seq - 1`.

    `position` is the GTID set executed up to here, as text of `flavor` (mysql, mariadb). `head_us`
    is the head (watermark): every later record of this shard has a timestamp >= head_us. `lag_ms`
    is the age of the newest transaction in the log by the server's clock; 0 when caught up. `last`
    is None before the first transaction, and in records of layout 1. `identity` is that of the
    shard's MariaDB servers, "" where the log holds none. `skipped` is None before the first skip,
    and in a log whose skips were all written by a release without it. `ddl` is in a header of the
    record: None before the first DDL, and where a release without it wrote last. So is `stopped`,
    of the last record before an error ended the producer; it covers no records.
    """

    first_seq: int
    last_seq: int
    end_offset: int
    flavor: str
    position: str
    head_us: int
    ticks: tuple[Tick, ...]
    mark: Mark | None
    server: str
    server_time_us: int
    lag_ms: int
    last: LastTransaction | None = None
    identity: str = ""
    skipped: Skipped | None = None
    ddl: LastDdl | None = None
    stopped: StopReason | None = None
