"""The hop over a reshard that other tools did: no marks, so times and tokens decide (seed 001).

Such a reshard is declared in the topology with the time from which on its targets took writes.
A reader takes the sources as far as they go, then restarts the targets from the minimum timestamp
and drops what `origin` proves to have been seen; what it cannot prove is marked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from event_token import EventToken, Order, StreamPosition, compare
from event_token.key_range import KeyRange
from topics.kafka_client import ClientConfig
from topics.lineage import overlapping
from topics.progress import cell_start_us
from topics.progress_history import ProgressHistory
from topics.reading.errors import UnmarkedReshard
from topics.schema_ids import SchemaIds
from topics.start import resolve_start_of
from topics.topology import ReshardEntry, ReshardState, Topology
from topics.vevent import VEvent

# A target logs a replicated change with the time of its own clock. Clocks that are kept at all
# agree far better than this; what comes twice by it is dropped or marked.
OVERLAP_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """What a reader had read when it hopped to a target; `frontier_us` None: nobody knows.

    All changes of the sources before `frontier_us` had been read and none from it on, where
    `is_exact`; else the `tokens` say how far each source had been read.
    """

    hop_time_us: int
    frontier_us: int | None = None
    is_exact: bool = False
    tokens: Mapping[str, EventToken | None] | None = None

    def judged(self, event: VEvent) -> VEvent | None:
        """The event, marked where it may have been seen; None where it was."""
        is_seen = self._is_seen(event)
        if is_seen is None:
            return replace(event, possible_duplicate=True)
        return None if is_seen else event

    def _is_seen(self, event: VEvent) -> bool | None:
        origin = event.token_text.origin
        if origin is None or self.tokens is None or origin.shard not in self.tokens:
            return False if event.timestamp_us >= self.hop_time_us else None
        if self.is_exact and self.frontier_us is not None:
            return origin.timestamp_us < self.frontier_us
        last = self.tokens[origin.shard]
        order = Order.UNKNOWN if last is None else compare(origin.token, last)
        if order is Order.UNKNOWN:
            return None
        return order is not Order.NEWER


def declared(topology: Topology) -> list[ReshardEntry]:
    """The reshards that were declared, not marked."""
    return [r for r in topology.reshards if r.state == ReshardState.DECLARED.value]


def check_marked(topology: Topology, position: StreamPosition) -> None:
    """Raise UnmarkedReshard where a reader stands on sources of a reshard without marks."""
    for reshard in declared(topology):
        if position.shards.keys() & set(reshard.sources):
            from_us = min(position.frontier_us, reshard.hop_time_us or 0)
            raise UnmarkedReshard(
                f"reshard {reshard.reshard_id} of {', '.join(reshard.sources)} was declared, its "
                f"logs have no marks: Spark cannot tell which changes come twice. Start a new "
                f"query and table at the time {from_us} us of the new shards, or use "
                f"a Subscriber, which marks them",
            )


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
) -> tuple[StreamPosition, dict[str, SeenBefore]] | None:
    """Where a reader that waits at `position` goes on, and what it has seen; None: as it is.

    `is_exact`: the reader has read what is before the frontier, all of it (mode Strict).
    Errors: see `resolve_start`.
    """
    for reshard in declared(topology):
        sources = overlapping(reshard.sources, key_range)
        targets = overlapping(reshard.targets, key_range)
        hop_time_us = reshard.hop_time_us or 0
        if not sources or not position.shards.keys() >= set(sources):
            continue
        heads_us = [_head_us(config, topology.keyspace, s, schema_ids) for s in sources]
        if position.frontier_us < min(hop_time_us, *map(cell_start_us, heads_us)):
            continue
        begin = resolve_start_of(
            max(0, min(position.frontier_us, hop_time_us) - OVERLAP_US),
            config=config,
            keyspace=topology.keyspace,
            shards=targets,
            schema_ids=schema_ids,
        )
        tokens = {shard: position.shards[shard].token for shard in sources}
        kept = {s: at for s, at in position.shards.items() if s not in sources}
        end = StreamPosition(position.epoch + 1, position.frontier_us, {**kept, **begin.shards})
        seen = SeenBefore(hop_time_us, position.frontier_us, is_exact, tokens)
        return end, dict.fromkeys(targets, seen)
    return None


def _head_us(config: ClientConfig, keyspace: str, shard: str, schema_ids: SchemaIds) -> int:
    with ProgressHistory(config, keyspace, shard, schema_ids) as history:
        last = history.last() if history.exists() else None
    return 0 if last is None else last.progress.head_us
