"""Hops over a reshard done by other tools: without marks, times and tokens decide.

Such a reshard is declared in the topology, with the time from which its targets took writes. A
reader reads the sources to their end, then starts the targets at the least timestamp. It drops
changes that it has seen according to their `origin`, and marks those of which it does not know.
"""

from collections.abc import Mapping
from typing import Final

from event_token import ClockUncertainty, EventToken, ShardPosition, StreamPosition
from event_token.key_range import KeyRange
from topics.kafka.client import ClientConfig
from topics.kafka.lookups import Lookup, Lookups, bounds, last_between
from topics.keyspace.lineage import overlapping
from topics.keyspace.topology import ReshardEntry, ReshardState, Topology
from topics.names import ShardTopics
from topics.progress.history import ProgressHistory
from topics.progress.record import cell_start_us
from topics.reading.row_filters import ReadBeforeHop
from topics.records.event_decoder import EventDecoder
from topics.records.table_shape import SchemaIds
from topics.start.positions import START_WAIT_S, resolve_start_of

# A target logs a replicated change with the time of its own clock. Synchronised clocks agree far
# better than this, unless the settings say otherwise; changes that are read twice because of it
# are dropped or marked.
OVERLAP_US: Final = 1_000_000


def declared(topology: Topology) -> list[ReshardEntry]:
    """Return the reshards that were declared, so that their logs have no marks."""
    return [r for r in topology.reshards if r.state == ReshardState.DECLARED.value]


def unmarked_targets(topology: Topology) -> dict[str, ReadBeforeHop]:
    """Return what a reader that begins with such targets has seen: it is unknown."""
    return {
        shard: ReadBeforeHop(reshard.hop_time_us or 0)
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
    read_us: Mapping[str, int] | None = None,
    clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen, and has no state
    wait_s: float = START_WAIT_S,
) -> tuple[StreamPosition, dict[str, ReadBeforeHop]] | None:
    """Return where a reader waiting at `position` continues, and what it has seen.

    None: no hop, or the sources have more to read. `is_exact`: the reader has read everything
    before its frontier (mode Strict). `taken_us`: heads up to which it has read the progress of the
    sources. `read_us`: the time before which each shard has been read; None: the frontier. `clock`:
    how far the clocks may be off. Errors: see `resolve_start`.
    """
    for reshard in declared(topology):
        sources = overlapping(reshard.sources, key_range)
        targets = overlapping(reshard.targets, key_range)
        hop_time_us = reshard.hop_time_us or 0
        if not sources or not position.shards.keys() >= set(sources):
            continue
        with Lookups(config) as lookups:
            heads_us = lookups.results(
                {s: _head_us(ProgressHistory(topology.keyspace, s, schema_ids)) for s in sources}
            )
        frontier_us = min(read_us[s] for s in sources) if read_us else position.frontier_us
        end_us = _read_us(heads_us, taken_us, frontier_us, hop_time_us)
        if end_us is None:
            continue
        begin = resolve_start_of(
            max(0, min(hop_time_us, end_us) - _overlap_us(clock)),
            config=config,
            keyspace=topology.keyspace,
            shards=targets,
            schema_ids=schema_ids,
            wait_s=wait_s,
        )
        # A source that MaxHold left out was not read up to the frontier.
        exact = is_exact and frontier_us == end_us
        tokens = {shard: position.shards[shard].token for shard in sources}
        if not exact:
            with Lookups(config) as lookups:
                tokens |= lookups.results(
                    {
                        shard: _last_token(
                            ShardTopics(topology.keyspace, shard),
                            position.shards[shard],
                            schema_ids,
                        )
                        for shard, token in tokens.items()
                        if token is None
                    }
                )
        kept = {s: at for s, at in position.shards.items() if s not in sources}
        end = StreamPosition(position.epoch + 1, position.frontier_us, {**kept, **begin.shards})
        return end, dict.fromkeys(targets, ReadBeforeHop(hop_time_us, frontier_us, exact, tokens))
    return None


def _overlap_us(clock: ClockUncertainty) -> int:
    """Return how far apart two clocks may be: one ahead by as much as the other one is behind."""
    return max(OVERLAP_US, clock.behind_us + clock.uncertainty_us)


def _read_us(
    heads_us: Mapping[str, int],
    taken_us: Mapping[str, int] | None,
    frontier_us: int,
    hop_time_us: int,
) -> int | None:
    """Return the time before which the sources were read; None if there is more to read."""
    if frontier_us < min(hop_time_us, *map(cell_start_us, heads_us.values())):
        return None
    if taken_us is not None and any(
        taken_us.get(shard, 0) < min(hop_time_us, head_us) for shard, head_us in heads_us.items()
    ):
        return None
    # Without progress it is unknown how far a source was read.
    known_us = [cell_start_us(head_us) for head_us in heads_us.values() if head_us]
    return min([frontier_us, *known_us])


def _head_us(history: ProgressHistory) -> Lookup[int]:
    last = yield from history.last_if_any()
    return 0 if last is None else last.progress.head_us


def _last_token(
    topics: ShardTopics, at: ShardPosition, schema_ids: SchemaIds
) -> Lookup[EventToken | None]:
    """Return the token of the last record below a position; None if it is gone or absent."""
    if at.seq == 0:
        return None
    start, _ = yield from bounds(topics.log)
    record = yield from last_between(topics.log, start, at.offset)
    if record is None or record.value is None:
        return None
    last = EventDecoder(schema_ids).decode(record.value, topics.shard, record.offset)
    return last.token if last.seq == at.seq else None
