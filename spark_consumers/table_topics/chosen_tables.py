"""The tables that a run writes, compared with those of the run before it."""

from collections.abc import Collection, Iterator

from spark_consumers.errors import TargetConflict
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader

# The parts of a shard's own topics, `<keyspace>.<shard>.<part>`, which look like those of a table.
_PARTS_OF_SHARDS = frozenset({"progress", "copy"})


def check_tables(
    config: ClientConfig, prefix: str, before: Collection[str], wanted: Collection[str]
) -> None:
    """TargetConflict if a run writes a table again that the run before it left out.

    `before`, `wanted` (`database.table`): the tables of the two, empty for all. A topic that has
    records lacks the changes of the time between, and no consumer could tell.
    """
    if not before or (wanted and set(wanted) <= set(before)):
        return
    for table, partitions in _topics_of(config, prefix):
        is_added = table not in before and (not wanted or table in wanted)
        topic = f"{prefix}.{table}"
        if is_added and any(_has_records(config, topic, number) for number in range(partitions)):
            raise TargetConflict(
                f"{topic}: an earlier run left out table {table} (--table), so its topic lacks the "
                f"changes since then. Name the other tables with --table, or begin new topics "
                f"under another --prefix; without the earlier messages, delete this topic: it is "
                f"created again with the changes that follow"
            )


def _topics_of(config: ClientConfig, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the tables that have topics, and of how many partitions."""
    with kafka_errors("listing topics", config.brokers):
        topics = open_admin(config).list_topics(timeout=TAIL_TIMEOUT_S).topics
    for name, topic in sorted(topics.items()):
        database, _, table = name.removeprefix(f"{prefix}.").partition(".")
        is_of_shard = "-" in database and table in _PARTS_OF_SHARDS
        if name.startswith(f"{prefix}.") and table and "." not in table and not is_of_shard:
            yield f"{database}.{table}", len(topic.partitions)


def _has_records(config: ClientConfig, topic: str, partition: int) -> bool:
    with PartitionReader(config, topic, partition, TAIL_TIMEOUT_S) as reader:
        return reader.bounds()[1] > 0
