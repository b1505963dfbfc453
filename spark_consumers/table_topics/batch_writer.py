"""Writes what one task has of a batch, exactly once: fence, read the marker, decide, commit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from spark_consumers.table_topics.decision import Plan, Span, plan_batch
from spark_consumers.table_topics.marker import Marker, Owner, check_owner, marker_partition
from spark_consumers.table_topics.positions import read_marker
from spark_consumers.table_topics.transaction import Headers, TaskTransaction
from topics.kafka.client import ClientConfig
from topics.names import table_topics_transactional_id

# Records between two looks at whether the brokers refuse them.
_SERVE_EVERY = 1_000


@dataclass(frozen=True, slots=True)
class Message:
    """A record of a table's topic; `value` None is a tombstone."""

    topic: str
    key: bytes
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Output:
    """What the topics get of a batch, and what the next batch has to know of moved rows."""

    messages: Iterable[Message]
    moves: Callable[[], tuple[object, ...]]  # once `messages` is exhausted


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """Which task of which query writes, and for whom."""

    config: ClientConfig
    keyspace: str
    prefix: str
    task: int
    owner: Owner

    @property
    def transactional_id(self) -> str:
        """The id that fences."""
        return table_topics_transactional_id(self.keyspace, self.prefix, self.task)

    @property
    def partition(self) -> int:
        """Where its markers are."""
        return marker_partition(self.keyspace, self.prefix, self.task)


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """A batch of a query; `query` is the id in its checkpoint."""

    query: str
    batch_id: int
    span: Span


def write_batch(
    task: TaskIdentity,
    batch: TaskBatch,
    output_of: Callable[[Plan, tuple[object, ...]], Output],
) -> int:
    """Write a task's part of a batch unless its topics have it; return the number of records.

    `output_of` gets the plan and what the last batch left about moved rows. Raises
    TargetConflict, Fenced, Retry: the batch has to run again; UsageError when partitions were added
    to a topic; and what `output_of` raises.
    """
    with TaskTransaction(task.config, task.transactional_id) as transaction:
        transaction.fence()
        stored = read_marker(task.config, task.transactional_id, task.partition)
        if stored is not None:
            check_owner(stored.owner, task.owner, task.transactional_id)
        end = None if stored is None else stored.end
        plan = plan_batch(end, batch.span)
        if plan.end == end:
            return 0
        output = output_of(plan, () if stored is None else stored.moves)
        transaction.begin()
        count, topics = 0, set()
        for count, message in enumerate(output.messages, 1):
            transaction.write(message.topic, message.key, message.value, message.headers)
            topics.add(message.topic)
            if count % _SERVE_EVERY == 0:
                transaction.serve()
        marker = Marker(
            task.owner,
            batch.query,
            batch.batch_id,
            batch.span.start,
            plan.end,
            output.moves(),
            count + (0 if stored is None else stored.records),
        )
        transaction.write_marker(marker, task.partition)
        transaction.flush()
        # Only now, so that no record can have gone to a partition that was added later.
        for topic in sorted(topics):
            transaction.check_partitions(topic, task.owner.partitions)
        transaction.commit()
        return count
