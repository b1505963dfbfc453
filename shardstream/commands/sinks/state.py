"""`shardstream state`: keeps the present rows of all tables in Delta tables."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Unpack

import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from event_token.position import NUMBER_MAX
from shardstream.commands.sinks.common import (
    QueryOptions,
    Watching,
    lake_places,
    run_sink,
    table_name,
)
from shardstream.commands.sinks.reactions import Reactions
from shardstream.settings.model import Settings
from spark_consumers.current_state.query.as_of import table_as_of
from spark_consumers.current_state.query.layout import FRONTIERS
from spark_consumers.current_state.query.run import run_state
from spark_consumers.current_state.query.sink import (
    PARTITIONS_DEFAULT,
    check_partial,
    check_partitions,
)
from spark_consumers.current_state.query.upkeep import maintain_state
from spark_consumers.sink_query.run import SinkProgress
from topics.records.accepted_skips import check_accepted
from topics.start.start_forms import StartWord, parse_start


@dataclass(frozen=True, slots=True)
class Layout:
    """How many tasks write, and how new tables are laid out."""

    partitions: int = PARTITIONS_DEFAULT
    buckets: int | None = None
    deletion_vectors: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions(QueryOptions):
    """Which tables to keep where, and how new ones are laid out."""

    target: str
    histories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    accept_skip: tuple[str, ...] = ()
    reactions: Reactions = field(default_factory=Reactions)


def run_state_command(settings: Settings, options: StateOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is applied."""
    target, checkpoint = lake_places(options.target, options.checkpoint)
    check_accepted(options.accept_skip)
    for name in options.tables:
        table_name(name)
    check_partial(options.histories, options.reactions.on_partial)
    check_partitions(options.layout.partitions, options.layout.buckets or options.layout.partitions)

    def run(
        spark: SparkSession, source: Mapping[str, str], **watching: Unpack[Watching]
    ) -> SinkProgress:
        return run_state(
            spark,
            options.keyspace,
            target,
            checkpoint,
            source,
            tables=options.tables,
            histories=options.histories,
            partitions=options.layout.partitions,
            buckets=options.layout.buckets,
            deletion_vectors=options.layout.deletion_vectors,
            accept_skip=options.accept_skip,
            on_type_change=options.reactions.on_type_change,
            on_truncate=options.reactions.on_truncate,
            on_partial=options.reactions.on_partial,
            drop_columns=options.reactions.drop_columns,
            on_same_key=options.keys.on_same_key,
            **watching,
        )

    run_sink("state", settings, options, (target, checkpoint), run)


def histories_of(
    names: Collection[str] | None, track: Collection[str] | None, tables: Collection[str] | None
) -> dict[str, list[str]]:
    """Return the tables whose history is kept, and their columns that are tracked, [] for all.

    `names`, `track`, `tables`: as given with --history, --track, --table. UsageError on a table
    that the query does not keep, or a bad --track.
    """
    found: dict[str, list[str]] = {}
    for name in names or ():
        table_name(name, "--history")
        if tables and name not in tables:
            raise UsageError(f"--history {name}: name it with --table too, as the others are")
        found[name] = []
    for text in track or ():
        table, _, columns = text.partition("=")
        names = [name.strip() for name in columns.split(",")]
        if table not in found or not all(names):
            raise UsageError(
                f"--track {text!r}: a table of --history and its columns, such as "
                f"shop.orders=status,price"
            )
        found[table] += names
    return found


def run_as_of(
    target: str,
    table: str,
    time: str,
    to: Path,
    changelog: str | None = None,
    accept_skip: Collection[str] = (),
) -> None:
    """Write a table as of a time to a Parquet file; with a change log, as of exactly that time."""
    check_accepted(accept_skip)
    moment = parse_start(time, "TIME", (StartWord.LATEST,))
    if moment is StartWord.LATEST:
        if changelog is not None:
            raise UsageError("latest is the end of a batch: with --changelog, name a time")
        moment = NUMBER_MAX
    if not isinstance(moment, int):
        raise UsageError(f"TIME {time!r} is a position: name a time, such as 2026-01-31T12:00:00Z")
    found = table_as_of(target, table, moment, changelog=changelog, accept_skip=accept_skip)
    try:
        pq.write_table(found.rows, to)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UsageError(
            f"--to {to}: {os.strerror(error.errno or 0)}: name a file in a folder that is there "
            f"and can be written"
        ) from error
    at = datetime.fromtimestamp(found.frontier_us / 1e6, tz=UTC).isoformat(timespec="microseconds")
    typer.echo(f"{to}: {found.rows.num_rows:,} rows of {table}, exact as of {at}")


def run_maintain(target: str, tombstones_s: int, keep_s: int) -> None:
    """Remove old tombstones and files, and tell how many."""
    for removed in maintain_state(target, tombstones_s=tombstones_s, keep_s=keep_s):
        rows = f"{removed.tombstones} tombstones"
        if removed.table == FRONTIERS:
            rows = f"{removed.frontiers} frontiers"
        typer.echo(f"{removed.table}: {rows}, {removed.files} files removed")
