"""`shardstream table-topics`: one topic per table, in Debezium's format, each change once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from pyspark.sql import SparkSession

from shardstream.commands.sinks.common import QueryOptions, Watching, place, run_sink, table_name
from shardstream.settings.model import load_settings
from spark_consumers.sink_query.run import SinkProgress
from spark_consumers.table_topics.options import TopicOptions
from spark_consumers.table_topics.run import run_table_topics
from topics.names import table_topic
from topics.records.accepted_skips import check_accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTopicsOptions(QueryOptions):
    """What to write of a keyspace, and how."""

    checkpoint: str
    topics: TopicOptions
    accept_skip: tuple[str, ...] = ()


def run_table_topics_command(config: Path | None, options: TableTopicsOptions) -> None:
    """Run until SIGINT or SIGTERM; with `available_now` until everything there is written."""
    check_accepted(options.accept_skip)
    for name in options.tables:
        table_topic(options.topics.envelope.prefix, *table_name(name))
    settings = load_settings(config)
    topics = replace(options.topics, on_same_key=options.keys.on_same_key)
    topics = topics.with_registry(settings.kafka.schema_registry_url)
    checkpoint = place(options.checkpoint)

    def run(
        spark: SparkSession, source: Mapping[str, str], **watching: Unpack[Watching]
    ) -> SinkProgress:
        return run_table_topics(
            spark,
            checkpoint,
            source,
            topics,
            tables=options.tables,
            accept_skip=options.accept_skip,
            **watching,
        )

    run_sink("table-topics", settings, options, [checkpoint], run)
