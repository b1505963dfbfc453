"""What switching, cancelling and completing a reshard change in the topology. Pure."""

from dataclasses import replace

from event_token.errors import Halt, UsageError
from topics.keyspace.topology import ReshardEntry, ReshardState, ShardEntry, ShardState, Topology


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


# The state that each is reached from.
_BEFORE = {
    ReshardState.SWITCHED: ReshardState.RUNNING,
    ReshardState.CANCELLED: ReshardState.RUNNING,
    ReshardState.COMPLETED: ReshardState.SWITCHED,
}


def moved(
    topology: Topology | None,
    keyspace: str,
    reshard_id: str,
    state: ReshardState,
    hop_time_us: int | None = None,
) -> Topology:
    """The topology with the reshard in `state`; unchanged if it is there already.

    SWITCHED: the targets serve, the sources are retired, and the epoch grows by one. CANCELLED: the
    targets are retired, for a name is used once. Halt when the present state excludes that.
    """
    entry = entry_of(topology, keyspace, reshard_id)
    assert topology is not None  # noqa: S101 - it has the entry
    if entry.state == state.value:
        return topology
    if entry.state != _BEFORE[state].value:
        raise Halt(
            f"reshard {reshard_id} of keyspace {keyspace} is {entry.state} in the topology and "
            f"cannot become {state.value}"
        )
    shards = list(topology.shards)
    epoch = topology.epoch
    if state is ReshardState.SWITCHED:
        states = {
            **dict.fromkeys(entry.sources, ShardState.RETIRED),
            **dict.fromkeys(entry.targets, ShardState.SERVING),
        }
        shards = _with_states(shards, states)
        epoch += 1
    elif state is ReshardState.CANCELLED:
        shards = _with_states(shards, dict.fromkeys(entry.targets, ShardState.RETIRED))
    hop = entry.hop_time_us if hop_time_us is None else hop_time_us
    after = replace(entry, state=state.value, hop_time_us=hop)
    reshards = tuple(after if e is entry else e for e in topology.reshards)
    return replace(topology, epoch=epoch, shards=tuple(shards), reshards=reshards)


def _with_states(shards: list[ShardEntry], states: dict[str, ShardState]) -> list[ShardEntry]:
    known = {shard.name: shard for shard in shards}
    for name, state in states.items():
        known[name] = ShardEntry(name, state)
    return list(known.values())
