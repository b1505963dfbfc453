"""The hop over a reshard that other tools did: no marks, so times and tokens decide (seed 001).

Such a reshard is declared in the topology with the time from which on its targets took writes.
A reader takes the sources as far as they go, then restarts the targets from the minimum timestamp
and drops what `origin` proves to have been seen; what it cannot prove is marked.
"""

from collections.abc import Mapping
from typing import Final

from event_token import EventToken, ShardPosition, StreamPosition
from event_token.key_range import KeyRange
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import TAIL_TIMEOUT_S, PartitionReader
from topics.keyspace.lineage import overlapping
from topics.keyspace.topology import ReshardEntry, ReshardState, Topology
from topics.names import ShardTopics
from topics.progress.history import ProgressHistory
from topics.progress.record import cell_start_us
from topics.reading.seen_before import SeenBefore
from topics.records.record_decoder import RecordDecoder
from topics.records.schema_ids import SchemaIds
from topics.start.positions import START_WAIT_S, resolve_start_of

# A target logs a replicated change with the time of its own clock. Clocks that are kept at all
# agree far better than this; what comes twice by it is dropped or marked.
OVERLAP_US: Final = 1_000_000


def declared(topology: Topology) -> list[ReshardEntry]:
    """The reshards that were declared, not marked."""
    return [r for r in topology.reshards if r.state == ReshardState.DECLARED.value]


def unmarked_targets(topology: Topology) -> dict[str, SeenBefore]:
    """What is to be said of targets that a reader begins with, not knowing what came before."""
    return {
        shard: SeenBefore(reshard.hop_time_us or 0)
        for reshard in declared(topology)
        for shard in reshard.targets
    }


def unmarked_hop(
    position: StreamPosition,
    *,
    config: ClientConfig,
    topology: Topology,
    key_range: KeyRange,
    schema_ids: SchemaIds,
    is_exact: bool,
    taken_us: Mapping[str, int] | None = None,
    wait_s: float = START_WAIT_S,
) -> tuple[StreamPosition, dict[str, SeenBefore]] | None:
    """Where a reader that waits at `position` goes on, and what it has seen; None: as it is.

    `is_exact`: the reader has read what is before the frontier, all of it (mode Strict).
    `taken_us`: heads up to which it knows the sources' progress; it waits for what it can still
    read. Errors: see `resolve_start`.
    """
    for reshard in declared(topology):
        sources = overlapping(reshard.sources, key_range)
        targets = overlapping(reshard.targets, key_range)
        hop_time_us = reshard.hop_time_us or 0
        if not sources or not position.shards.keys() >= set(sources):
            continue
        heads_us = {s: _head_us(config, topology.keyspace, s, schema_ids) for s in sources}
        read_us = _read_us(heads_us, taken_us, position.frontier_us, hop_time_us)
        if read_us is None:
            continue
        begin = resolve_start_of(
            max(0, min(hop_time_us, read_us) - OVERLAP_US),
            config=config,
            keyspace=topology.keyspace,
            shards=targets,
            schema_ids=schema_ids,
            wait_s=wait_s,
        )
        # A source that was passed by (MaxHold) was not read up to the frontier, in any mode.
        exact = is_exact and position.frontier_us == read_us
        tokens = {shard: position.shards[shard].token for shard in sources}
        if not exact:
            for shard in (shard for shard, token in tokens.items() if token is None):
                topics = ShardTopics(topology.keyspace, shard)
                tokens[shard] = _last_token(config, topics, position.shards[shard], schema_ids)
        kept = {s: at for s, at in position.shards.items() if s not in sources}
        end = StreamPosition(position.epoch + 1, position.frontier_us, {**kept, **begin.shards})
        seen = SeenBefore(hop_time_us, position.frontier_us, exact, tokens)
        return end, dict.fromkeys(targets, seen)
    return None


def _read_us(
    heads_us: Mapping[str, int],
    taken_us: Mapping[str, int] | None,
    frontier_us: int,
    hop_time_us: int,
) -> int | None:
    """The time before which all of the sources was read; None where there is more to read."""
    if frontier_us < min(hop_time_us, *map(cell_start_us, heads_us.values())):
        return None
    if taken_us is not None and any(
        taken_us.get(shard, 0) < min(hop_time_us, head_us) for shard, head_us in heads_us.items()
    ):
        return None
    # A source whose progress is gone says nothing of how far it was read.
    known_us = [cell_start_us(head_us) for head_us in heads_us.values() if head_us]
    return min([frontier_us, *known_us])


def _head_us(config: ClientConfig, keyspace: str, shard: str, schema_ids: SchemaIds) -> int:
    with ProgressHistory(config, keyspace, shard, schema_ids) as history:
        last = history.last() if history.exists() else None
    return 0 if last is None else last.progress.head_us


def _last_token(
    config: ClientConfig, topics: ShardTopics, at: ShardPosition, schema_ids: SchemaIds
) -> EventToken | None:
    """The token of the last record below a position; None where it is gone, or there is none."""
    if at.seq == 0:
        return None
    with PartitionReader(config, topics.log, 0, TAIL_TIMEOUT_S) as reader:
        start, _ = reader.bounds()
        record = reader.last_between(start, at.offset)
    if record is None or record.value is None:
        return None
    last = RecordDecoder(schema_ids).decode(record.value, topics.shard, record.offset)
    return last.token if last.seq == at.seq else None
