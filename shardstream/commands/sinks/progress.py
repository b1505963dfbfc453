"""Prints how far a sink is, also with the copies of tables, by what it has read of each shard log.

Copies write their rows into the shard logs, and a sink reads them there. A copy record names the
rows copied and the place in the log before which they lie; a sink's progress names the place up to
which it has read. So the answer is the same after a restart, and for a copy that was finished long
before the sink began.
"""

import logging
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from event_token.errors import Retry, ShardstreamError
from shardstream.commands.status_lines import Status, StatusLines, warn
from shardstream.status.keyspace_report import duration, seconds_left
from spark_consumers.sink_query import SinkProgress
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyFeed, CopyState, TableCopy

Name = tuple[str, str]
# Places remembered per copy; with more, every second one is dropped. Rows between two places are
# assumed to lie evenly.
MARKS_MAX = 1_000
# A sink's rate is that of its last batches: a batch brings many rows at once.
RATE_BATCHES = 10
# Shown until a sink has really read all: the server only estimates a table's rows.
PERCENT_MAX = 99


@dataclass(frozen=True, slots=True)
class CopiedTable:
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


def unread_copies(
    histories: Mapping[str, CopyHistory],
    seqs: Mapping[str, int],
    tables: Sequence[str],
    rates: SinkRates,
    now_s: float,
) -> list[CopiedTable]:
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
            found.append(_copied(table, [copy for copy, _, _ in parts], rows, rate))
    return found


def is_passed(copy: TableCopy, seq: int) -> bool:
    """Tell whether a copy has ended and lies before a place of the log."""
    return copy.state is CopyState.COMPLETED and copy.seq <= seq


def _copied(table: str, copies: Sequence[TableCopy], rows: int, rows_per_s: float) -> CopiedTable:
    totals = [_total(copy) for copy in copies]
    known = [total for total in totals if total is not None]
    total = sum(known) if len(known) == len(totals) else None
    return CopiedTable(
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


def copy_text(copied: CopiedTable) -> str:
    """Return a table's progress in words."""
    percent = copied.percent
    share = f"{copied.rows:,} rows" if percent is None else f"{percent} %"
    notes = [] if copied.state == "copied" else [copied.state]
    if copied.rows_per_s:
        notes.append(f"{copied.rows_per_s:,.0f} rows/s")
    if copied.seconds_left is not None:
        notes.append(f"{duration(copied.seconds_left)} left")
    more = f" ({', '.join(notes)})" if notes else ""
    return f"copy of {copied.table}: {share}{more}"


# After brokers could not be reached.
AGAIN_S = 30.0


class CopyWatch:
    """Follows the copy topics of the shards that a sink reads."""

    def __init__(
        self, config: ClientConfig, keyspace: str, tables: Sequence[str], *, as_json: bool = False
    ) -> None:
        """`tables`: `database.table` of those that the sink reads, none for all."""
        self._config = config
        self._keyspace = keyspace
        self._tables = tables
        self._as_json = as_json
        self._feeds: dict[str, CopyFeed] = {}
        self._histories: dict[str, CopyHistory] = {}
        self._rates = SinkRates()
        self._next_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def look(self, seqs: Mapping[str, int]) -> list[CopiedTable]:
        """Return how far the sink is with each table whose copies it has not read to their end.

        `seqs`: the last record that it has read of each shard log. A sink does not need the copy
        topics: where they cannot be read, this warns once, and returns nothing from then on; where
        brokers are unreachable, it tries again later.
        """
        now_s = time.monotonic()
        if now_s < self._next_s:
            return []
        try:
            self._follow(seqs)
        except Retry:
            self.close()
            self._next_s = now_s + AGAIN_S
            return []
        except ShardstreamError as error:
            warn(self._keyspace, f"progress of copies is not shown: {error}", as_json=self._as_json)
            self.close()
            self._next_s = float("inf")
            return []
        return unread_copies(self._histories, seqs, self._tables, self._rates, now_s)

    def _follow(self, seqs: Mapping[str, int]) -> None:
        for shard in self._feeds.keys() - seqs:  # a reshard has ended its log
            self._feeds.pop(shard).close()
        for shard in seqs:
            if shard in self._feeds:
                self._feeds[shard].poll(0)
                continue
            history = self._histories.setdefault(shard, CopyHistory())
            topics = ShardTopics(self._keyspace, shard)
            self._feeds[shard] = CopyFeed(self._config, topics, on_copy=history.add)
            self._feeds[shard].read_to_end()

    def close(self) -> None:
        """Close the consumers."""
        while self._feeds:
            self._feeds.popitem()[1].close()


class CopyBars:
    """A progress bar per table, on a terminal, while there is one to show."""

    def __init__(self, console: Console | None = None) -> None:
        """Show nothing yet. `console`: another than standard output."""
        self._console = console
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def show(self, tables: Sequence[CopiedTable]) -> None:
        """Show these tables and no others."""
        if not tables:
            self.close()
            return
        if self._progress is None:
            self._progress = _bars(self._console)
            self._progress.start()
        progress = self._progress
        for table in self._bars.keys() - {copied.table for copied in tables}:
            progress.remove_task(self._bars.pop(table))
        for copied in tables:
            if copied.table not in self._bars:
                self._bars[copied.table] = progress.add_task(
                    copied.table, share="", rows="", left=""
                )
            left = copied.seconds_left
            progress.update(
                self._bars[copied.table],
                completed=copied.percent or 0,
                total=None if copied.percent is None else 100,
                share="" if copied.percent is None else f"{copied.percent} %",
                rows=f"{copied.rows:,}",
                left=copied.state if left is None else f"{duration(left)} left",
            )

    def refresh(self) -> None:
        """Draw the bars now; they are drawn ten times a second anyway."""
        if self._progress is not None:
            self._progress.refresh()

    def close(self) -> None:
        """Remove the bars."""
        if self._progress is not None:
            self._progress.stop()
        self._progress, self._bars = None, {}


def _bars(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}  {task.fields[rows]} rows  {task.fields[left]}"),
        console=console,
        transient=True,
    )


# Tables whose copies a line of text names; JSON has all of them.
TABLES_SHOWN_MAX = 5


def progress_text(progress: SinkProgress) -> str:
    """Return progress in words; before the stream has begun its frontier is None or 0."""
    frontier = "-"
    if progress.frontier_us:
        moment = datetime.fromtimestamp(progress.frontier_us / 1e6, tz=UTC)
        frontier = moment.isoformat(timespec="milliseconds")
    rejected = f"{progress.rejected:,} rejected, " if progress.rejected else ""
    text = f"{progress.rows:,} rows, {rejected}complete up to {frontier}"
    return f"{text}; waiting: {progress.waiting}" if progress.waiting else text


class ProgressPrinter:
    """Prints what it waits for at once, progress when a line is due, and the end.

    While copies are being applied it shows how far they are: as bars on a terminal, else in lines.
    Tables that are left out by rule are named once, when the first row of them was; JSON has all.
    """

    def __init__(
        self, keyspace: str, lines: StatusLines, watch: CopyWatch, bars: CopyBars | None
    ) -> None:
        self._keyspace = keyspace
        self._lines = lines
        self._watch = watch
        self._bars = bars
        self._at_once: object = None
        self._named: frozenset[str] = frozenset()

    def __call__(self, progress: SinkProgress) -> None:
        """Print it, if a line is due or what it waits for has changed."""
        tables = self._watch.look(progress.seqs)
        copies = [(each.table, each.state) for each in tables]
        at_once = (progress.waiting, copies, progress.left_out)
        self._report(progress, tables, at_once=at_once != self._at_once)
        self._at_once = at_once

    def end(self, progress: SinkProgress) -> None:
        """Print how far the sink is at its end."""
        self._report(progress, self._watch.look(progress.seqs), at_once=True)

    def close(self) -> None:
        """Remove the bars and stop following copies."""
        if self._bars is not None:
            self._bars.close()
        self._watch.close()

    def _report(
        self, progress: SinkProgress, tables: Sequence[CopiedTable], *, at_once: bool
    ) -> None:
        text = progress_text(progress)
        if self._bars is None:
            text = "; ".join([text, *map(copy_text, tables[:TABLES_SHOWN_MAX])])
            more = len(tables) - TABLES_SHOWN_MAX
            text += f"; {more} more tables" if more > 0 else ""
        else:
            self._bars.show(tables)
        text += self._left_out(progress)
        copies = [{**asdict(each), "percent": each.percent} for each in tables]
        fields = {"keyspace": self._keyspace, **asdict(progress), "copies": copies}
        del fields["seqs"]
        line = Status(
            self._keyspace,
            text,
            fields,
            progress=progress.rows,
            level=logging.WARNING if progress.waiting else logging.INFO,
        )
        self._lines.report(line, at_once=at_once)

    def _left_out(self, progress: SinkProgress) -> str:
        """Return the words about tables that were not named before."""
        new = [name for name in progress.left_out if name not in self._named]
        self._named |= {*new}
        if not new:
            return ""
        more = len(new) - TABLES_SHOWN_MAX
        names = ", ".join(new[:TABLES_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")
        return f"; left out as tables of an online schema change: {names}"
