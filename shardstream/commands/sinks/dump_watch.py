"""Follows the copies that a sink reads, and shows a bar for each table on a terminal."""

import time
from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from event_token.errors import Retry, ShardstreamError
from shardstream.commands.copy.progress import duration
from shardstream.commands.sinks.dump_progress import CopyHistory, SinkRates, TableDump, dumps
from shardstream.commands.status_lines import warn
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.copy_topic import CopyFeed

# After brokers could not be reached.
AGAIN_S = 30.0


class DumpWatch:
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

    def look(self, seqs: Mapping[str, int]) -> list[TableDump]:
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
        return dumps(self._histories, seqs, self._tables, self._rates, now_s)

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


class DumpBars:
    """A progress bar per table, on a terminal, while there is one to show."""

    def __init__(self, console: Console | None = None) -> None:
        """Show nothing yet. `console`: another than standard output."""
        self._console = console
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}

    def show(self, tables: Sequence[TableDump]) -> None:
        """Show these tables and no others."""
        if not tables:
            self.close()
            return
        if self._progress is None:
            self._progress = _bars(self._console)
            self._progress.start()
        progress = self._progress
        for table in self._bars.keys() - {dump.table for dump in tables}:
            progress.remove_task(self._bars.pop(table))
        for dump in tables:
            if dump.table not in self._bars:
                self._bars[dump.table] = progress.add_task(dump.table, share="", rows="", left="")
            left = dump.seconds_left
            progress.update(
                self._bars[dump.table],
                completed=dump.percent or 0,
                total=None if dump.percent is None else 100,
                share="" if dump.percent is None else f"{dump.percent} %",
                rows=f"{dump.rows:,}",
                left=dump.state if left is None else f"{duration(left)} left",
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
