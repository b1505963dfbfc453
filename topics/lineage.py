"""Which shards came before which, by the reshards in the topology. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from event_token import KeyRange, ShardName
from topics.topology import ReshardEntry, Topology


@dataclass(frozen=True, slots=True)
class Era:
    """The shards that served a key range at some time, in the order of ranges.

    `undone`: the switched reshards that a reader of that time has before it, latest first.
    """

    shards: tuple[str, ...]
    undone: tuple[ReshardEntry, ...]


def switched(topology: Topology) -> list[ReshardEntry]:
    """The reshards with marks that were switched: those whose hop time is known."""
    return [reshard for reshard in topology.reshards if reshard.hop_time_us is not None]


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
            ordered = sorted(shards, key=lambda shard: ShardName.parse(shard).key_range.start)
            return Era(tuple(ordered), tuple(undone))
        shards = (shards - set(targets)) | set(overlapping(reshard.sources, key_range))
        undone.append(reshard)
        candidates.remove(reshard)


def overlapping(shards: Iterable[str], key_range: KeyRange) -> tuple[str, ...]:
    """Those of the shards that overlap the range."""
    return tuple(s for s in shards if ShardName.parse(s).key_range.overlaps(key_range))
