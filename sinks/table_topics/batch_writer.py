"""Writes what one task has of a batch, exactly once: fence, read the marker, decide, commit."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from event_token.position import NUMBER_MAX, StreamPosition, later_of
from sinks.errors import TargetConflict
from sinks.resume import PlannedBatch
from sinks.table_topics.positions import Marker, Owner, check_owner, marker_partition, read_marker
from sinks.table_topics.transaction import Headers, TaskTransaction
from topics.kafka.client import ClientConfig
from topics.names import table_topics_transactional_id


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What to do with a batch: drop rows up to `written` (a seq by shard), then stand at `end`."""

    written: Mapping[str, int]
    end: StreamPosition


def plan_batch(stored: StreamPosition | None, batch: PlannedBatch) -> BatchPlan:
    """Return what a task whose topics stand at `stored` (None: nowhere yet) does with a batch.

    TargetConflict when rows between `stored` and the batch would be left out, or the two are
    positions of different streams.
    """
    if stored is None:
        if batch.batch_id > 0:
            raise TargetConflict(
                "the checkpoint has written batches of which the topics know nothing: "
                "_shardstream.positions was deleted, or the checkpoint belongs to other topics. "
                "Start again with a new checkpoint, from a copy if the topics are to be whole"
            )
        return BatchPlan({}, batch.end)
    _check_follows(stored, batch.begin)
    written = {
        # A shard that the stream has left since has been read to its end.
        shard: stored.shards[shard].seq if shard in stored.shards else NUMBER_MAX
        for shard in batch.begin.shards
    }
    return BatchPlan(written, later_of(stored, batch.end))


def _check_follows(stored: StreamPosition, start: StreamPosition) -> None:
    if stored.epoch == start.epoch and stored.shards.keys() != start.shards.keys():
        raise TargetConflict(
            f"the topics stand at a position of shards {', '.join(stored.shards)}, and the batch "
            f"begins at one of {', '.join(start.shards)}: it is of another key range or another "
            "start. Continue with the key range that the topics were begun with"
        )
    gaps = [
        f"shard {shard}: written up to seq {stored.shards[shard].seq}, the batch begins behind "
        f"seq {at.seq}"
        for shard, at in start.shards.items()
        if shard in stored.shards and at.seq > stored.shards[shard].seq
    ]
    if stored.epoch < start.epoch:
        gaps.insert(0, f"written up to epoch {stored.epoch}, the batch begins in {start.epoch}")
    if gaps:
        raise TargetConflict(
            f"rows between the topics and the batch would be left out ({'; '.join(gaps)}): the "
            "topics' positions were restored from an older state, or the checkpoint belongs to "
            "other topics. Remove the checkpoint: the query then continues where the topics end"
        )


def earliest_of(a: StreamPosition, b: StreamPosition) -> StreamPosition:
    """Return the one of two positions of the stream to start from so that both are reached."""
    if a.epoch != b.epoch:
        return a if a.epoch < b.epoch else b
    shards = {
        shard: b.shards[shard] if b.shards[shard].seq < at.seq else at
        for shard, at in a.shards.items()
        if shard in b.shards
    }
    return replace(a, frontier_us=min(a.frontier_us, b.frontier_us), shards=shards)


# Records between two checks whether the brokers refuse them.
_SERVE_EVERY = 1_000


class Message(NamedTuple):
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


def write_batch(
    task: TaskIdentity,
    batch: PlannedBatch,
    output_of: Callable[[BatchPlan, tuple[object, ...]], Output],
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
        plan = plan_batch(end, batch)
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
            batch.query_id,
            batch.batch_id,
            batch.begin,
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
