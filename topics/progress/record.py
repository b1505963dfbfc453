"""The progress record: checkpoint, heartbeat, watermark and time index at once (design.md §4)."""

from dataclasses import dataclass
from enum import Enum

# Ticks and frontiers lie on this grid: whole milliseconds, so that cuts by token time and by the
# record timestamps of Kafka agree, and coarse enough that a busy shard has 100 ticks a second.
GRID_US = 10_000

# Commit times may be ahead of the head by as much as a producer lets a server's clock run ahead;
# records up to a head that is older than a time by more than this are older than that time.
CLOCK_AHEAD_US_MAX = 60_000_000


def cell_start_us(timestamp_us: int) -> int:
    """Start of the grid cell that holds `timestamp_us`."""
    return timestamp_us - timestamp_us % GRID_US


@dataclass(frozen=True, slots=True)
class Tick:
    """Records below `offset` are older than `timestamp_us` (a cell's start), the others are not."""

    timestamp_us: int
    offset: int


class MarkKind(str, Enum):
    """What a mark of a reshard says."""

    BEGIN = "BEGIN"
    END = "END"
    CANCEL = "CANCEL"


@dataclass(frozen=True, slots=True)
class Mark:
    """A reshard's mark at `offset` of this log; a reader needs nothing else to hop."""

    kind: MarkKind
    offset: int
    reshard_id: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    hop_time_us: int | None


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress record. A heartbeat adds nothing: then `last_seq` is `first_seq - 1`.

    `position` is the GTID set executed up to here, in the words of `flavor` (mysql, mariadb).
    `head_us`: every later record of this shard has a timestamp >= head_us.
    `lag_ms`: age of the newest transaction in the log by the server's clock; 0 when caught up.
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
