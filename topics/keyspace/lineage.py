"""Which shards came before which, by the reshards in the topology. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from event_token import KeyRange, ShardName
from event_token.errors import UsageError
from topics.keyspace.topology import ReshardEntry, ReshardState, ShardEntry, ShardState, Topology


@dataclass(frozen=True, slots=True)
class Era:
    """The shards that served a key range at some time, in the order of ranges.

    `undone`: the switched reshards that a reader of that time has before it, latest first.
    """

    shards: tuple[str, ...]
    undone: tuple[ReshardEntry, ...]


def switched(topology: Topology) -> list[ReshardEntry]:
    """The reshards that were switched or declared: those whose hop time is known."""
    return [reshard for reshard in topology.reshards if reshard.hop_time_us is not None]


def has_marks(reshard: ReshardEntry) -> bool:
    """Whether END and BEGIN stand in the logs; not where other tools have resharded."""
    return reshard.state != ReshardState.DECLARED.value


def retired_us(topology: Topology) -> dict[str, int]:
    """The hop times of shards whose logs have an END for certain."""
    return {
        shard: reshard.hop_time_us
        for reshard in topology.reshards
        if reshard.hop_time_us is not None and has_marks(reshard)
        for shard in reshard.sources
    }


def declare(
    topology: Topology, shards: Iterable[str], reshard_id: str, switched_at_us: int
) -> Topology:
    """The topology with other serving shards, that other tools have made of those before.

    UsageError when they do not cover everything once, have been retired, or are being resharded.
    """
    wanted, serving = set(shards), {shard.name for shard in topology.serving()}
    gone, new = _by_range(serving - wanted), _by_range(wanted - serving)
    states = {shard.name: shard.state for shard in topology.shards}
    spent = [shard for shard in new if states.get(shard) is ShardState.RETIRED]
    if spent:
        raise UsageError(
            f"keyspace {topology.keyspace}: {', '.join(spent)} served before, and a shard name is "
            f"used once: give the shard the next generation (80-c0, 80-c0.2, ...)",
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
        raise UsageError(f"keyspace {topology.keyspace}: reshard {repeated[0]} is known already")
    after = replace(topology, epoch=topology.epoch + len(steps), shards=entries)
    return replace(after, reshards=(*topology.reshards, *declared))


def _steps(gone: list[str], new: list[str]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The smallest reshards that lead from some shards to others, both in order of ranges."""
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
    """Go back from the serving shards over the reshards that the wanted time is before."""
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
    """Those of the shards that overlap the range."""
    return tuple(s for s in shards if ShardName.parse(s).key_range.overlaps(key_range))
