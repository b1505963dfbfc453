"""How far a sink is with the copies of tables, by what it has read of each shard log. Pure.

Copies write their rows into the shard logs, and a sink reads them there. A copy record names the
rows copied and the place in the log before which they lie; a sink's progress names the place up to
which it has read. So the answer is the same after a restart, and for a copy that was finished long
before the sink began.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardstream.commands.copy.progress import duration, seconds_left
from topics.progress.copy_topic import CopyState, TableCopy

Name = tuple[str, str]
# Places remembered per copy; with more, every second one is dropped. Rows between two places are
# assumed to lie evenly.
MARKS_MAX = 1_000
# A sink's rate is that of its last batches: a batch brings many rows at once.
RATE_BATCHES = 10
# Shown until a sink has really read all: the server only estimates a table's rows.
PERCENT_MAX = 99


@dataclass(frozen=True, slots=True)
class TableDump:
    """How far a sink is with the copies of a table.

    `rows`: copied rows that it has read (those that the copy dropped for newer changes count too).
    `rows_total`: of all its copies, estimated while one runs; None where nothing is known.
    `state`: `copying`, `paused` or `failed` on a shard, or `copied` when the rest is in the logs.
    """

    table: str
    state: str
    rows: int
    rows_total: int | None
    rows_per_s: float = 0.0
    seconds_left: float | None = None

    @property
    def percent(self) -> int | None:
        """How much of it was read; None where the total is not known."""
        if not self.rows_total:
            return None
        return min(PERCENT_MAX, 100 * self.rows // self.rows_total)


class CopyHistory:
    """The copies of one shard's tables, each with places of its log and the rows before them."""

    def __init__(self) -> None:
        """Begin without any copy."""
        self.copies: dict[Name, TableCopy] = {}
        self._marks: dict[Name, list[tuple[int, int]]] = {}

    def add(self, copy: TableCopy) -> None:
        """Take the next state of a copy; those of other releases, without places, are left out."""
        if not copy.begun_seq:
            return
        name = (copy.database, copy.table)
        before = self.copies.get(name)
        self.copies[name] = copy
        if before is None or before.copy_id != copy.copy_id:
            self._marks[name] = [(copy.begun_seq - 1, 0)]
        marks = self._marks[name]
        if copy.seq > marks[-1][0]:
            marks.append((copy.seq, copy.rows_read))
        if len(marks) > MARKS_MAX:
            self._marks[name] = [marks[0], *marks[1:-1:2], marks[-1]]

    def rows_read(self, name: Name, seq: int) -> int:
        """Return how many rows of a copy lie before a place of the log."""
        marks = self._marks[name]
        i = bisect_right(marks, seq, key=lambda mark: mark[0])
        if i == 0 or i == len(marks):
            return marks[max(0, i - 1)][1]
        (seq_before, rows), (seq_after, rows_after) = marks[i - 1], marks[i]
        return rows + (rows_after - rows) * (seq - seq_before) // (seq_after - seq_before)


@dataclass(slots=True)
class SinkRates:
    """The rate at which a sink reads the copied rows of each table."""

    _read: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def rate(self, table: str, rows: int, now_s: float) -> float:
        """Note how many rows were read by now; return rows per second, 0.0 while unknown."""
        read = self._read.setdefault(table, deque(maxlen=RATE_BATCHES))
        if read and rows < read[-1][1]:
            read.clear()  # another copy
        if not read or rows > read[-1][1]:
            read.append((now_s, rows))
        first_s, first_rows = read[0]
        return (rows - first_rows) / (now_s - first_s) if now_s > first_s else 0.0


def dumps(
    histories: Mapping[str, CopyHistory],
    seqs: Mapping[str, int],
    tables: Sequence[str],
    rates: SinkRates,
    now_s: float,
) -> list[TableDump]:
    """Return the tables with copies that the sink has not read to their end, sorted by name.

    `seqs`: the last record read of each shard log; other shards do not count, so a shard without
    the table does not either. `tables`: those that the sink reads, none for all.
    """
    shards = [shard for shard in seqs if shard in histories]
    names = {name for shard in shards for name in histories[shard].copies}
    found = []
    for name in sorted(names):
        table = ".".join(name)
        if tables and table not in tables:
            continue
        parts = [
            (copy, histories[shard].rows_read(name, seqs[shard]), seqs[shard])
            for shard in shards
            if (copy := histories[shard].copies.get(name)) and copy.state is not CopyState.CANCELLED
        ]
        if not all(is_passed(copy, seq) for copy, _, seq in parts):
            rows = sum(read for _, read, _ in parts)
            rate = rates.rate(table, rows, now_s)
            found.append(_dump(table, [copy for copy, _, _ in parts], rows, rate))
    return found


def is_passed(copy: TableCopy, seq: int) -> bool:
    """Tell whether a copy has ended and lies before a place of the log."""
    return copy.state is CopyState.COMPLETED and copy.seq <= seq


def _dump(table: str, copies: Sequence[TableCopy], rows: int, rows_per_s: float) -> TableDump:
    totals = [_total(copy) for copy in copies]
    known = [total for total in totals if total is not None]
    total = sum(known) if len(known) == len(totals) else None
    return TableDump(
        table,
        _state(copies),
        rows,
        total,
        round(rows_per_s, 1),
        _seconds_left(copies, rows, total, rows_per_s),
    )


def _total(copy: TableCopy) -> int | None:
    """Return the rows of a copy, by the server's estimate while it is not over."""
    if copy.state is CopyState.COMPLETED:
        return copy.rows_read
    # Before its first chunk a copy has no estimate, and with a condition that of another number.
    return None if copy.where or not copy.key else max(copy.rows_estimated, copy.rows_read)


def _state(copies: Iterable[TableCopy]) -> str:
    states = {copy.state for copy in copies}
    for state in (CopyState.FAILED, CopyState.PAUSED, CopyState.COPYING):
        if state in states:
            return str(state.value)
    return "copied"


def _seconds_left(
    copies: Sequence[TableCopy], rows: int, total: int | None, rows_per_s: float
) -> float | None:
    """Return the time left of the slower one: the copies, or the sink. None where it is unknown."""
    running = [seconds_left(c) for c in copies if c.state is not CopyState.COMPLETED]
    known = [left for left in running if left is not None]
    if total is None or rows_per_s <= 0 or len(known) < len(running):
        return None
    return round(max([(total - rows) / rows_per_s, *known]), 1)


def dump_text(dump: TableDump) -> str:
    """Return a table's progress in words."""
    percent = dump.percent
    share = f"{dump.rows:,} rows" if percent is None else f"{percent} %"
    notes = [] if dump.state == "copied" else [dump.state]
    if dump.rows_per_s:
        notes.append(f"{dump.rows_per_s:,.0f} rows/s")
    if dump.seconds_left is not None:
        notes.append(f"{duration(dump.seconds_left)} left")
    more = f" ({', '.join(notes)})" if notes else ""
    return f"copy of {dump.table}: {share}{more}"
