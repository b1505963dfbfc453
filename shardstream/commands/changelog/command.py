"""`shardstream changelog`: a Spark job that writes every change once to a Delta table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

import typer
from pyspark.sql import SparkSession

from event_token.errors import Halt
from shardstream.commands.sinks.common import QueryOptions, Watching, lake_places, run_sink
from shardstream.settings.model import Settings
from spark_consumers.change_log.check import check_changelog
from spark_consumers.change_log.delta_files import open_changelog
from spark_consumers.change_log.run import run_changelog
from spark_consumers.sink_query.run import SinkProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogOptions(QueryOptions):
    """What to record of a keyspace and where, and whether to end once the log is caught up."""

    target: str


def run_changelog_command(settings: Settings, options: ChangelogOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is recorded."""
    target, checkpoint = lake_places(options.target, options.checkpoint)

    def run(
        spark: SparkSession, source: Mapping[str, str], **watching: Unpack[Watching]
    ) -> SinkProgress:
        return run_changelog(
            spark,
            options.keyspace,
            target,
            checkpoint,
            source,
            **watching,
        )

    run_sink("changelog", settings, options, (target, checkpoint), run)


def run_vacuum(target: str, *, dry_run: bool) -> None:
    """Remove files that no version has, and tell how many."""
    files = open_changelog(target, {}).vacuum(full=True, dry_run=dry_run)
    typer.echo(f"{target}: {len(files)} files {'would be removed' if dry_run else 'removed'}")


def run_check(target: str) -> None:
    """Print what a check finds; Halt unless each change is there once and in order."""
    found = check_changelog(target)
    typer.echo(f"{target}: {found.changes:,} changes")
    if found.lost or found.repeated or found.out_of_order:
        raise Halt(
            f"{target}: {found.lost} changes are lost, {found.repeated} repeated and "
            f"{found.out_of_order} out of order. Do not use the log: write a new one, from a copy "
            f"or from where the stream on Kafka begins"
        )
