"""What a task does with a batch, given how far its topics have come. Pure.

All positions are of one merged stream. The rows of a batch are of the shards of its start; a hop
has no rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from event_token.position import NUMBER_MAX, ShardPosition, StreamPosition
from spark_consumers.errors import TargetConflict


@dataclass(frozen=True, slots=True)
class Span:
    """The batch between two positions; `is_first`: the query has written no batch before it."""

    start: StreamPosition
    end: StreamPosition
    is_first: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with a batch: drop rows up to `written` (a seq by shard), then stand at `end`."""

    written: Mapping[str, int]
    end: StreamPosition


def plan_batch(stored: StreamPosition | None, batch: Span) -> Plan:
    """Return what a task whose topics stand at `stored` (None: nowhere yet) does with a batch.

    TargetConflict when rows between `stored` and the batch would be left out, or the two are
    positions of different streams.
    """
    if stored is None:
        if not batch.is_first:
            raise TargetConflict(
                "the checkpoint has written batches of which the topics know nothing: "
                "_shardstream.positions was deleted, or the checkpoint belongs to other topics. "
                "Start again with a new checkpoint, from a copy if the topics are to be whole"
            )
        return Plan({}, batch.end)
    _check_follows(stored, batch.start)
    written = {
        # A shard that the stream has left since has been read to its end.
        shard: stored.shards[shard].seq if shard in stored.shards else NUMBER_MAX
        for shard in batch.start.shards
    }
    return Plan(written, later_of(stored, batch.end))


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


def later_of(a: StreamPosition, b: StreamPosition) -> StreamPosition:
    """Return the position up to which everything before `a` and before `b` has been read."""
    if a.epoch < b.epoch:
        a, b = b, a
    shards = {
        shard: _later_shard(at, b.shards[shard]) if shard in b.shards else at
        for shard, at in a.shards.items()
    }
    return replace(a, frontier_us=max(a.frontier_us, b.frontier_us), shards=shards)


def _later_shard(a: ShardPosition, b: ShardPosition) -> ShardPosition:
    return a if a.seq >= b.seq else b


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
