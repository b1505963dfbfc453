"""What switching, cancelling and completing a reshard change in the topology. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from event_token.errors import Halt, UsageError
from topics.keyspace.topology import (
    BeginDecision,
    ReshardEntry,
    ReshardState,
    ShardEntry,
    ShardState,
    Topology,
)


def entry_of(topology: Topology | None, keyspace: str, reshard_id: str) -> ReshardEntry:
    """The reshard's entry; UsageError lists the known ones."""
    entries = () if topology is None else topology.reshards
    for entry in entries:
        if entry.reshard_id == reshard_id:
            return entry
    known = ", ".join(entry.reshard_id for entry in entries) or "none"
    raise UsageError(
        f"keyspace {keyspace} has no reshard {reshard_id!r}; the topology has: {known}"
    )


def later_reshards(topology: Topology, shard: str, reshard_id: str) -> frozenset[str]:
    """Other reshards that may have stopped the writes of a shard since: it is their source.

    A server that is used again may have the END of a shard that it was before.
    """
    return frozenset(
        entry.reshard_id
        for entry in topology.reshards
        if entry.reshard_id != reshard_id
        and shard in entry.sources
        and entry.state != ReshardState.CANCELLED.value
    )


# The state that each is reached from.
_BEFORE = {
    ReshardState.SWITCHED: ReshardState.RUNNING,
    ReshardState.CANCELLED: ReshardState.RUNNING,
    ReshardState.COMPLETED: ReshardState.SWITCHED,
}


def decided(
    topology: Topology | None, keyspace: str, reshard_id: str, decision: BeginDecision
) -> Topology:
    """The topology with the decision that the targets of a reshard begin."""
    entry = entry_of(topology, keyspace, reshard_id)
    return _with_entry(topology, entry, replace(entry, decision=decision))


def moved(
    topology: Topology | None, keyspace: str, reshard_id: str, state: ReshardState
) -> Topology:
    """The topology with the reshard in `state`; unchanged if it is there already.

    SWITCHED: the targets serve, the sources are retired, and the epoch grows by one. CANCELLED: the
    targets are retired, for a name is used once. Halt when the present state excludes that.
    """
    entry = entry_of(topology, keyspace, reshard_id)
    if entry.state == state.value:
        return _with_entry(topology, entry, entry)
    if entry.state != _BEFORE[state].value:
        raise Halt(
            f"reshard {reshard_id} of keyspace {keyspace} is {entry.state} in the topology and "
            f"cannot become {state.value}"
        )
    if state is ReshardState.SWITCHED:
        if entry.decision is None:
            raise Halt(f"reshard {reshard_id} of keyspace {keyspace} is not decided: run switch")
        after = replace(entry, state=state.value, hop_time_us=entry.decision.hop_time_us)
        roles = {
            **dict.fromkeys(entry.sources, ShardState.RETIRED),
            **dict.fromkeys(entry.targets, ShardState.SERVING),
        }
        topology = _with_entry(topology, entry, after, roles)
        return replace(topology, epoch=topology.epoch + 1)
    after = replace(entry, state=state.value, decision=None)
    is_over = state is ReshardState.CANCELLED
    retired = dict.fromkeys(entry.targets if is_over else (), ShardState.RETIRED)
    return _with_entry(topology, entry, after, retired)


def _with_entry(
    topology: Topology | None,
    before: ReshardEntry,
    after: ReshardEntry,
    states: Mapping[str, ShardState] = MappingProxyType({}),
) -> Topology:
    assert topology is not None  # noqa: S101 - it has the entry
    known = {shard.name: shard for shard in topology.shards}
    known |= {name: ShardEntry(name, state) for name, state in states.items()}
    reshards = tuple(after if entry is before else entry for entry in topology.reshards)
    return replace(topology, shards=tuple(known.values()), reshards=reshards)
