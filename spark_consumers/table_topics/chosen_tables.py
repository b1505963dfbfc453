"""The tables whose topics have records, and those that the run before wrote, beside this run's."""

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
        if is_added and _has_records(config, f"{prefix}.{table}", partitions):
            raise TargetConflict(
                f"{prefix}.{table}: an earlier run left out table {table} (--table), so its topic "
                f"lacks the changes since then. Name the other tables with --table, or begin new "
                f"topics under another --prefix; without the earlier messages, delete this topic: "
                f"it is created again with the changes that follow"
            )


def tables_with_records(config: ClientConfig, prefix: str) -> tuple[str, ...]:
    """Return the tables (`database.table`) whose topics have records."""
    found = _topics_of(config, prefix)
    return tuple(t for t, partitions in found if _has_records(config, f"{prefix}.{t}", partitions))


def _topics_of(config: ClientConfig, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the tables that have topics, and of how many partitions."""
    with kafka_errors("listing topics", config.brokers):
        topics = open_admin(config).list_topics(timeout=TAIL_TIMEOUT_S).topics
    for name, topic in sorted(topics.items()):
        database, _, table = name.removeprefix(f"{prefix}.").partition(".")
        is_of_shard = "-" in database and table in _PARTS_OF_SHARDS
        if name.startswith(f"{prefix}.") and table and "." not in table and not is_of_shard:
            yield f"{database}.{table}", len(topic.partitions)


def _has_records(config: ClientConfig, topic: str, partitions: int) -> bool:
    for partition in range(partitions):
        with PartitionReader(config, topic, partition, TAIL_TIMEOUT_S) as reader:
            if reader.bounds()[1] > 0:
                return True
    return False
