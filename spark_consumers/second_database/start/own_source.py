"""Refuses a target whose server is a shard of the stream: the query would follow its own tables."""

from collections.abc import Mapping

from event_token.errors import UsageError
from spark_consumers.second_database.urls import dialect_of
from spark_consumers.source.options import SourceOptions
from spark_consumers.source.read_tasks import schema_ids_of
from topics.keyspace.topology import read_topology
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import Progress


def refuse_own_source(url: str, source: SourceOptions) -> None:
    """UsageError if the target is a server of a shard that serves."""
    if dialect_of(url).may_be_source:
        refuse_shard(url, _newest_progress(source))


def refuse_shard(url: str, shards: Mapping[str, Progress]) -> None:
    """UsageError if the target is a server of one of these shards, with their newest progress."""
    dialect = dialect_of(url)
    with dialect.connected() as connection:
        shard = dialect.source_shard(connection, shards)
    if shard is not None:
        raise UsageError(
            f"{dialect.place} is a server of shard {shard}: the query would follow its own tables. "
            f"Write to another server, or name the tables to follow with --table"
        )


def _newest_progress(source: SourceOptions) -> dict[str, Progress]:
    keyspace = source.keyspace
    topology = read_topology(source.kafka, keyspace)
    schema_ids = schema_ids_of(source.kafka, source.registry_url)
    found = {
        entry.name: last_progress(source.kafka, ShardTopics(keyspace, entry.name), schema_ids)
        for entry in (topology.serving() if topology is not None else ())
    }
    return {shard: progress for shard, progress in found.items() if progress is not None}
