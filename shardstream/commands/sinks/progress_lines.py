"""What the commands of sinks print while their query runs."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from shardstream.commands.sinks.dump_progress import TableDump, dump_text
from shardstream.commands.sinks.dump_watch import DumpBars, DumpWatch
from shardstream.commands.status_lines import Status, StatusLines
from spark_consumers.sink_query.run import SinkProgress

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
        self, keyspace: str, lines: StatusLines, watch: DumpWatch, bars: DumpBars | None
    ) -> None:
        self._keyspace = keyspace
        self._lines = lines
        self._watch = watch
        self._bars = bars
        self._at_once: object = None
        self._named: frozenset[str] = frozenset()

    def __call__(self, progress: SinkProgress) -> None:
        """Print it, if a line is due or what it waits for has changed."""
        dumps = self._watch.look(progress.seqs)
        copies = [(dump.table, dump.state) for dump in dumps]
        at_once = (progress.waiting, copies, progress.left_out)
        self._report(progress, dumps, at_once=at_once != self._at_once)
        self._at_once = at_once

    def end(self, progress: SinkProgress) -> None:
        """Print how far the sink is at its end."""
        self._report(progress, self._watch.look(progress.seqs), at_once=True)

    def close(self) -> None:
        """Remove the bars and stop following copies."""
        if self._bars is not None:
            self._bars.close()
        self._watch.close()

    def _report(self, progress: SinkProgress, dumps: Sequence[TableDump], *, at_once: bool) -> None:
        text = progress_text(progress)
        if self._bars is None:
            text = "; ".join([text, *map(dump_text, dumps[:TABLES_SHOWN_MAX])])
            more = len(dumps) - TABLES_SHOWN_MAX
            text += f"; {more} more tables" if more > 0 else ""
        else:
            self._bars.show(dumps)
        text += self._left_out(progress)
        copies = [{**asdict(dump), "percent": dump.percent} for dump in dumps]
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
