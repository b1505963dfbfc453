"""The succession of shards over the reshards in the topology. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from event_token import KeyRange, ShardName
from event_token.errors import UsageError
from topics.keyspace.topology import ReshardEntry, ReshardState, ShardEntry, ShardState, Topology


@dataclass(frozen=True, slots=True)
class Era:
    """The shards that served a key range at some time, in key range order.

    `undone`: the switched reshards that lie ahead of a reader of that time, latest first.
    """

    shards: tuple[str, ...]
    undone: tuple[ReshardEntry, ...]


def switched(topology: Topology) -> list[ReshardEntry]:
    """Return the reshards with a known hop time: switched or declared ones."""
    return [reshard for reshard in topology.reshards if reshard.hop_time_us is not None]


def has_marks(reshard: ReshardEntry) -> bool:
    """Return whether the logs contain END and BEGIN; not if other tools have resharded."""
    return reshard.state != ReshardState.DECLARED.value


def retired_us(topology: Topology) -> dict[str, int]:
    """Return the hop times of shards whose logs certainly contain an END."""
    return {
        shard: reshard.hop_time_us
        for reshard in topology.reshards
        if reshard.hop_time_us is not None and has_marks(reshard)
        for shard in reshard.sources
    }


def declare(
    topology: Topology, shards: Iterable[str], reshard_id: str, switched_at_us: int
) -> Topology:
    """Return the topology after other tools have replaced serving shards with new ones.

    UsageError when the new shards do not cover every keyspace id exactly once, reuse a retired
    name, or are being resharded.
    """
    wanted, serving = set(shards), {shard.name for shard in topology.serving()}
    gone, new = _by_range(serving - wanted), _by_range(wanted - serving)
    states = {shard.name: shard.state for shard in topology.shards}
    spent = [shard for shard in new if states.get(shard) is ShardState.RETIRED]
    if spent:
        raise UsageError(
            f"keyspace {topology.keyspace}: {', '.join(spent)} served before, and shard names are "
            f"never reused: use the next generation (80-c0, 80-c0.2, ...)",
        )
    for reshard in topology.reshards:
        touched = {*reshard.sources, *reshard.targets} & {*gone, *new}
        if touched and reshard.state == ReshardState.RUNNING.value:
            raise UsageError(
                f"keyspace {topology.keyspace}: reshard {reshard.reshard_id} of "
                f"{', '.join(sorted(touched))} is under way: switch or cancel it",
            )
    states |= dict.fromkeys(gone, ShardState.RETIRED) | dict.fromkeys(new, ShardState.SERVING)
    entries = tuple(ShardEntry(name, state) for name, state in states.items())
    steps = _steps(gone, new)
    declared = tuple(
        ReshardEntry(
            reshard_id if len(steps) == 1 else f"{reshard_id}.{n}",
            sources,
            targets,
            ReshardState.DECLARED.value,
            switched_at_us,
        )
        for n, (sources, targets) in enumerate(steps, 1)
    )
    known = {reshard.reshard_id for reshard in topology.reshards}
    if repeated := [r.reshard_id for r in declared if r.reshard_id in known]:
        raise UsageError(f"keyspace {topology.keyspace}: reshard {repeated[0]} already exists")
    after = replace(topology, epoch=topology.epoch + len(steps), shards=entries)
    return replace(after, reshards=(*topology.reshards, *declared))


def _steps(gone: list[str], new: list[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the smallest reshards that lead from some shards to others, in key range order."""
    steps = []
    sources: list[str] = []
    targets: list[str] = []
    ends = {shard: ShardName.parse(shard).key_range.end.rstrip(b"\0") for shard in (*gone, *new)}
    left = list(new)
    for source in gone:
        sources.append(source)
        while left and (not ends[source] or b"" != ends[left[0]] <= ends[source]):
            targets.append(left.pop(0))
        if targets and ends[targets[-1]] == ends[source]:
            steps.append((tuple(sources), tuple(targets)))
            sources, targets = [], []
    return steps


def _by_range(shards: Iterable[str]) -> list[str]:
    return sorted(shards, key=lambda shard: ShardName.parse(shard).key_range.start)


def era_of(
    topology: Topology, key_range: KeyRange, is_before: Callable[[ReshardEntry], bool]
) -> Era:
    """Go back from the serving shards over the reshards that are later than the wanted time."""
    shards = set(topology.shards_for(key_range))
    undone: list[ReshardEntry] = []
    candidates = switched(topology)
    while True:
        for reshard in candidates:
            targets = overlapping(reshard.targets, key_range)
            if targets and shards >= set(targets) and is_before(reshard):
                break
        else:
            return Era(tuple(_by_range(shards)), tuple(undone))
        shards = (shards - set(targets)) | set(overlapping(reshard.sources, key_range))
        undone.append(reshard)
        candidates.remove(reshard)


def overlapping(shards: Iterable[str], key_range: KeyRange) -> tuple[str, ...]:
    """Return the shards that overlap the range."""
    return tuple(s for s in shards if ShardName.parse(s).key_range.overlaps(key_range))
