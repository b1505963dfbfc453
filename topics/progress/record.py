"""The progress record of a shard log: checkpoint, heartbeat, watermark and time index in one.

Its `head_us`, the head, is the watermark of the shard: no later record is older.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, assert_never

from event_token import GtidSet
from topics.errors import ProgressBroken

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


class JournalKind(StrEnum):
    """The kind of a row of the journal, and of its JOURNAL record."""

    BEGIN = "BEGIN"
    END = "END"
    CANCELLED = "CANCELLED"


class MarkKind(StrEnum):
    """The kind of a reshard's mark."""

    BEGIN = "BEGIN"
    END = "END"
    CANCEL = "CANCEL"


# The mark that a row of the journal becomes, and the reverse.
MARK_KINDS: Final = {
    JournalKind.BEGIN: MarkKind.BEGIN,
    JournalKind.END: MarkKind.END,
    JournalKind.CANCELLED: MarkKind.CANCEL,
}
_JOURNAL_KINDS: Final = {mark: kind for kind, mark in MARK_KINDS.items()}


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
                "kind": _JOURNAL_KINDS[self.kind],
                "sources": list(self.sources),
                "targets": list(self.targets),
                "hop_time_us": self.hop_time_us,
            }
        )

    def begins(self, target: str) -> bool:
        """Return whether a target begins with this, its first mark; else it is cancelled.

        ProgressBroken for an END.
        """
        match self.kind:
            case MarkKind.BEGIN:
                return True
            case MarkKind.CANCEL:
                return False
            case MarkKind.END:
                raise ProgressBroken(
                    f"shard {target}: END of reshard {self.reshard_id} at offset {self.offset} of "
                    f"the log of its target: its producer is faulty",
                )
            case never:
                assert_never(never)


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """A database transaction that a log has read last of its kind, and its place on one server.

    `commit_us`: the raw commit time. `server`: the UUID of the server that it was read from
    (MariaDB: its server id); `binlog_pos`: where the transaction begins in `binlog_file` there. One
    that the log begins behind, and that no binlog of the server had then, has no place ("" and 0),
    and the server's clock of then for its time.
    """

    gtid: str
    commit_us: int
    server: str
    binlog_file: str
    binlog_pos: int

    def is_same(self, commit_us: int) -> bool:
        """Return whether one of this GTID and raw commit time is this very transaction."""
        if not self.binlog_file:
            return commit_us <= self.commit_us
        return commit_us == self.commit_us


# Each is in every progress record, with some 150 bytes, and is looked up at every connect. Shards
# have a few domains or sources; what is left out is believed by its number.
LASTS_MAX: Final = 32


def lasts_of(read: Sequence[LastTransaction], position: GtidSet) -> tuple[LastTransaction, ...]:
    """Return the newest, and those that end a domain (MySQL: an interval) of a log's position.

    `read`: transactions in the order in which the log has read them.
    """
    kept = {each.gtid: each for each in read[:-1] if position.ends_with(each.gtid)}
    for each in read[-1:]:
        kept.pop(each.gtid, None)
        kept[each.gtid] = each
    return tuple(kept.values())[-LASTS_MAX:]


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
    database; "" where that is unknown.
    """

    at_us: int
    kind: str
    tables: str

    def __str__(self) -> str:
        """As status lines say it."""
        return f"{self.kind} {self.tables}".rstrip()


@dataclass(frozen=True, slots=True)
class PassedStatements:
    """Changes that were logged as statements and concern no table of the log.

    How many there were, when (by the server) the last one was read, and the table that it changed.
    """

    count: int
    at_us: int
    table: str

    def __str__(self) -> str:
        """As status lines say it."""
        moment = datetime.fromtimestamp(self.at_us / 1e6, UTC).isoformat(timespec="seconds")
        word = "change" if self.count == 1 else "changes"
        return (
            f"{self.count:,} {word} logged as statements passed, which concern no table of the "
            f"log; the last at {moment.replace('+00:00', 'Z')}, of {self.table}"
        )


@dataclass(frozen=True, slots=True)
class BinlogReach:
    """How far back the binlogs reach of the server that a log was read from.

    `since_us`: when (by the server) it began the oldest one. `kept_s`: for how long it keeps them,
    None for ever or where that is unknown.
    """

    since_us: int
    kept_s: int | None = None


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a producer has stopped: when (host clock), the class of the error, and its text.

    `restarts`: it has not stopped, but has started over this many times in one place; else 0.
    `command`: the one that the error names as a way on, whole; "" if there is none.
    """

    at_us: int
    error: str
    text: str
    restarts: int = 0
    command: str = ""

    def __str__(self) -> str:
        """As status lines say it."""
        before = f"{self.restarts} restarts in one place: " if self.restarts else ""
        return f"{before}{self.text} [{self.error}]"


class InParts(NamedTuple):
    """A record that takes more offsets than one: the messages that it was cut into."""

    seq: int
    parts: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress record. A heartbeat covers no records: its `last_seq` is `first_seq - 1`.

    `position` is the GTID set executed up to here, as text of `flavor` (mysql, mariadb). `head_us`
    is the head (watermark): every later record of this shard has a timestamp >= head_us. `lag_ms`
    is the age of the newest transaction in the log by the server's clock; 0 when caught up. `lasts`
    are the last transactions of domains (MySQL: of the position's intervals), as far as they are
    known, the log's newest last. `identity` is that of the shard's MariaDB servers, ""
    where the log holds none. `skipped` is None before the first skip, `ddl` before the first DDL.
    `ddl`, `passed`, the statements passed so far, and `binlogs` are in headers of the record, and
    so is `stopped`, of the last record before an error ended the producer; that record covers no
    rows. `proved`, also in a header: of how many tables the columns are proved; None: they are
    logged. `in_parts`: the records covered that take more than one offset, by seq.
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
    lasts: tuple[LastTransaction, ...] = ()
    identity: str = ""
    skipped: Skipped | None = None
    ddl: LastDdl | None = None
    stopped: StopReason | None = None
    passed: PassedStatements | None = None
    binlogs: BinlogReach | None = None
    proved: int | None = None
    in_parts: tuple[InParts, ...] = ()


class Cut(NamedTuple):
    """A place between two records: the next offset, and the seq of the last record below it."""

    offset: int
    seq: int


def first_offset_of(progress: Progress) -> int:
    """Return the offset of the first record covered by a progress record; they are contiguous."""
    return progress.end_offset - offsets_before(progress, progress.last_seq + 1)


def offsets_before(progress: Progress, seq: int) -> int:
    """Return how many offsets the covered records before `seq` take."""
    more = sum(parts - 1 for large, parts in progress.in_parts if large < seq)
    return seq - progress.first_seq + more


def cut_at(progress: Progress, tick: Tick) -> Cut:
    """Return the cut before the record that a tick of this progress record points to."""
    before = tick.offset - first_offset_of(progress)
    for large, parts in progress.in_parts:
        if large - progress.first_seq >= before:
            break
        before -= parts - 1
    return Cut(tick.offset, progress.first_seq + before - 1)


def begins_us(progress: Progress) -> int | None:
    """Return the grid time from which on the log is complete, if this record begins it, else None.

    A new log begins at a position of the binlog. What was committed before is not in it, and only
    the first progress record shows when that was: by its first tick, or, without rows, by its head.
    """
    if progress.first_seq != 1:
        return None
    if progress.ticks:
        return progress.ticks[0].timestamp_us
    return cell_start_us(progress.head_us + GRID_US - 1)


def ordered_from_seq(progress: Progress) -> int:
    """Return the first seq whose grid cell is known to a reader starting at this progress record.

    Records before its first tick continue a cell that began earlier. Without ticks, only records
    after those of this progress record can be placed, by its head (watermark).
    """
    if progress.first_seq == 1:
        return 1
    if progress.ticks:
        return cut_at(progress, progress.ticks[0]).seq + 1
    return progress.last_seq + 1
