"""Takes over the topics of a prefix for a new run, and finds where they stand."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce

from event_token.position import StreamPosition
from sinks.errors import TargetConflict
from sinks.table_topics.batch_writer import TaskIdentity, earliest_of
from sinks.table_topics.positions import Marker, Owner, check_owner, read_marker
from sinks.table_topics.transaction import TaskTransaction
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.errors import kafka_errors
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.kafka.provisioning import provision_positions_topic

# The parts of a shard's own topics, `<keyspace>.<shard>.<part>`, which look like those of a table.
_PARTS_OF_SHARDS = frozenset({"progress", "copy"})


def check_tables(
    config: ClientConfig, prefix: str, before: Collection[str], wanted: Collection[str]
) -> None:
    """TargetConflict if a run writes a table again that the run before it left out.

    `before`, `wanted` (`database.table`): the tables of the two, empty for all. A topic that has
    records lacks the changes of the time between, and no consumer could notice.
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


# The transactional ids of tasks; before the first run there is no generation.
_NO_GENERATION = 0


@dataclass(frozen=True, slots=True)
class TopicsClaim:
    """The right to write, and the position to read from; None where nothing is written yet."""

    owner: Owner
    position: StreamPosition | None


def claim_topics(config: ClientConfig, keyspace: str, prefix: str, wanted: Owner) -> TopicsClaim:
    """Fence all tasks of earlier runs, and write a greater generation into each marker.

    All ids are fenced before one of them is written, so that of two runs that claim at the same
    time one is fenced and the other has the greater generation. `wanted`: the owner-to-be, whose
    generation does not count. TargetConflict when the topics were begun with other numbers of tasks
    or partitions, another key scope or key range, or when an earlier run left out a table.
    """
    provision_positions_topic(config)
    with ExitStack() as stack:
        markers: list[Marker | None] = []
        transactions = []
        for task in range(wanted.tasks):
            found = TaskIdentity(config, keyspace, prefix, task, wanted)
            transaction = stack.enter_context(TaskTransaction(config, found.transactional_id))
            transaction.fence()
            markers.append(read_marker(config, found.transactional_id, found.partition))
            transactions.append((found, transaction))
        known = [marker for marker in markers if marker is not None]
        generation = max((marker.owner.generation for marker in known), default=_NO_GENERATION) + 1
        owner = replace(wanted, generation=generation)
        for before in known:
            check_owner(before.owner, owner, transactions[0][0].transactional_id)
            if before.end is not None:
                check_tables(config, prefix, before.owner.tables, owner.tables)
        # A first run that died while it claimed leaves some tasks without a marker.
        if len(known) < wanted.tasks and any(marker.end is not None for marker in known):
            raise TargetConflict(
                f"{wanted.tasks - len(known)} of the {wanted.tasks} tasks of {prefix} have no "
                f"position in _shardstream.positions, the others have: records were removed from "
                f"it. Begin new topics under another --prefix"
            )
        for (task_of, transaction), marker in zip(transactions, markers, strict=True):
            before = marker or Marker(owner)
            transaction.begin()
            # The tables are those of the marker's batch.
            now = replace(owner, tables=before.owner.tables)
            transaction.write_marker(replace(before, owner=now), task_of.partition)
            transaction.flush()
            transaction.commit()
    return TopicsClaim(owner, _position(known))


def _position(markers: list[Marker]) -> StreamPosition | None:
    """Return where the task that is furthest behind stands.

    A crash in the first batch leaves tasks without an end: that batch begins again.
    """
    begun = [marker for marker in markers if marker.end is not None]
    if not begun:
        return None
    found = [m.end if len(begun) == len(markers) else m.start for m in begun]
    return reduce(earliest_of, [position for position in found if position is not None])
