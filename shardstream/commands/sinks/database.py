"""`shardstream database`: tables of another database that follow a keyspace, each change once."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

from pyspark.sql import SparkSession

from event_token import KeyRange
from shardstream.commands.sinks.common import QueryOptions, Watching, place, run_sink, table_name
from shardstream.commands.sinks.reactions import Reactions
from shardstream.settings.model import load_settings
from spark_consumers.second_database.database import SqlDatabase, TargetOptions
from spark_consumers.second_database.run import run_database
from spark_consumers.second_database.urls import parse_url
from spark_consumers.sink_query.run import SinkProgress
from topics.records.accepted_skips import check_accepted

# The password, where the URL has none: a command line can be read by every user of the machine.
PASSWORD_VARIABLE = "SHARDSTREAM_DATABASE_PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions(QueryOptions):
    """What to follow and where to; `refresh_s` is the time between batches."""

    checkpoint: str
    url: str
    target: TargetOptions
    partitions: int
    refresh_s: float
    accept_skip: tuple[str, ...] = ()
    reactions: Reactions = field(default_factory=Reactions)


def run_database_command(config: Path | None, options: DatabaseOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is applied."""
    settings = load_settings(config)
    check_accepted(options.accept_skip)
    tables = [table_name(name) for name in options.tables]
    checkpoint = place(options.checkpoint)
    url = with_password(options.url)
    target = replace(
        options.target,
        key_range=KeyRange.parse(options.key_range),
        key_scope=options.keys.scope,
        on_same_key=options.keys.on_same_key,
        on_partial=options.reactions.on_partial,
        drop_columns=options.reactions.drop_columns,
    )
    # Before Spark: account, rights and options are told at once.
    SqlDatabase(url, target).prepare_for_tasks()

    def run(
        spark: SparkSession, source: Mapping[str, str], **watching: Unpack[Watching]
    ) -> SinkProgress:
        return run_database(
            spark,
            options.keyspace,
            url,
            checkpoint,
            source,
            target=target,
            tables=tables,
            partitions=options.partitions,
            accept_skip=options.accept_skip,
            on_type_change=options.reactions.on_type_change,
            on_truncate=options.reactions.on_truncate,
            interval_s=options.refresh_s,
            **watching,
        )

    run_sink("database", settings, options, [checkpoint], run)


def with_password(url: str) -> str:
    """Return a URL with the password of the environment, if it has none itself."""
    parsed = parse_url(url)
    password = os.environ.get(PASSWORD_VARIABLE)
    if parsed.password is None and password is not None:
        parsed = parsed.set(password=password)
    return parsed.render_as_string(hide_password=False)
