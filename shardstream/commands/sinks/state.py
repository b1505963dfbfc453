"""`shardstream state`: keeps the present rows of all tables in Delta tables."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
from shardstream.settings.model import Settings
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.current_state.query.as_of import table_as_of
from spark_consumers.current_state.query.run import run_state
from spark_consumers.current_state.query.sink import (
    PARTITIONS_DEFAULT,
    check_partitions,
)
from spark_consumers.current_state.query.upkeep import maintain_state
from spark_consumers.sink_query.run import SinkProgress
from topics.start.start_forms import StartWord, parse_start


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions(QueryOptions):
    """Which tables to keep where, and how new ones are laid out."""

    target: str
    tables: tuple[str, ...] = ()
    partitions: int = PARTITIONS_DEFAULT
    buckets: int | None = None
    deletion_vectors: bool = True
    accept_skip: tuple[str, ...] = ()
    on_type_change: OnTypeChange = OnTypeChange.HALT
    on_truncate: OnTruncate = OnTruncate.APPLY


def run_state_command(settings: Settings, options: StateOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is applied."""
    target, checkpoint = lake_places(options.target, options.checkpoint)
    for name in options.tables:
        table_name(name)
    check_partitions(options.partitions, options.buckets or options.partitions)

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
            partitions=options.partitions,
            buckets=options.buckets,
            deletion_vectors=options.deletion_vectors,
            accept_skip=options.accept_skip,
            on_type_change=options.on_type_change,
            on_truncate=options.on_truncate,
            **watching,
        )

    run_sink("state", settings, options, (target, checkpoint), run)


def run_as_of(
    target: str,
    table: str,
    time: str,
    to: Path,
    changelog: str | None = None,
    accept_skip: Collection[str] = (),
) -> None:
    """Write a table as of a time to a Parquet file; with a change log, as of exactly that time."""
    moment = parse_start(time, "TIME", (StartWord.LATEST,))
    if moment is StartWord.LATEST:
        if changelog is not None:
            raise UsageError("latest is the end of a batch: with --changelog, name a time")
        moment = NUMBER_MAX
    if not isinstance(moment, int):
        raise UsageError(f"TIME {time!r} is a position: name a time, such as 2026-01-31T12:00:00Z")
    found = table_as_of(target, table, moment, changelog=changelog, accept_skip=accept_skip)
    pq.write_table(found.rows, to)
    at = datetime.fromtimestamp(found.frontier_us / 1e6, tz=UTC).isoformat(timespec="microseconds")
    typer.echo(f"{to}: {found.rows.num_rows:,} rows of {table}, exact as of {at}")


def run_maintain(target: str, tombstones_s: int, keep_s: int) -> None:
    """Remove old tombstones and files, and tell how many."""
    for removed in maintain_state(target, tombstones_s=tombstones_s, keep_s=keep_s):
        typer.echo(
            f"{removed.table}: {removed.tombstones} tombstones, {removed.files} files removed"
        )
