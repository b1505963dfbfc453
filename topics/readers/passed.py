"""Which named readers still need the log of a shard that has ended. Pure."""

from collections.abc import Iterable, Sequence

from event_token import ShardName
from topics.keyspace.lineage import switched
from topics.keyspace.topology import Topology
from topics.names import ApplierName
from topics.readers.record import NamedReader, ReaderRecord


def not_passed(
    readers: Sequence[NamedReader], topology: Topology, shard: str
) -> tuple[ReaderRecord, ...]:
    """Return the reports of the readers, and of each process of a name, that need the shard.

    A reader needs it while its position names the shard, or a shard from which it comes. Appliers
    need it until their reshard is over.
    """
    needed_by = {shard, *_ancestors(topology, shard)}
    key_range = ShardName.parse(shard).key_range
    return tuple(
        report
        for reader in readers
        if ApplierName.parse(reader.last.name) is None
        for report in reader.all
        if needed_by & report.position.shards.keys() and report.key_range.overlaps(key_range)
    )


def _ancestors(topology: Topology, shard: str) -> set[str]:
    """Return the shards that past reshards turned into this one, over any number of them."""
    found: set[str] = set()
    left: Iterable[str] = (shard,)
    while left:
        sources = {
            source
            for reshard in switched(topology)
            if not set(left).isdisjoint(reshard.targets)
            for source in reshard.sources
        }
        left = sources - found
        found |= sources
    return found
