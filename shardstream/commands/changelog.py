"""`shardstream changelog`: a Spark job that writes every change once to a Delta table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Unpack

from pyspark.sql import SparkSession

from shardstream.commands.sinks.common import QueryOptions, Watching, lake_places, run_sink
from shardstream.settings.model import Settings
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
