"""`shardstream table-topics`: one topic per table, in Debezium's format, each change once."""

from functools import partial

from shardstream.commands.options import (
    CommandLine,
    Config,
    RequiredCheckpoint,
    takes_fields,
)
from shardstream.commands.sinks.sink_run import KeyedQueryOptions, place, run_sink
from shardstream.settings.model import load_settings
from sinks.table_topics.options import TopicOptions

app = CommandLine()


@app.command()
@takes_fields
def table_topics(
    query: KeyedQueryOptions,
    topics: TopicOptions,
    checkpoint: RequiredCheckpoint,
    config: Config = None,
) -> None:
    """Write one topic per table, in Debezium's format, each change exactly once."""
    from spark_consumers.table_topics import run_table_topics

    settings = load_settings(config)
    topics = topics.with_registry(settings.kafka.schema_registry_url)
    checkpoint = place(checkpoint)
    run = partial(run_table_topics, checkpoint=checkpoint, topics=topics)
    run_sink("table-topics", settings, query, [checkpoint], run, tables=topics.tables)
