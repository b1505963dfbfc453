"""A keyspace whose shards are split and then merged, with rows in between."""

from tests.topics.shard_writer import START_US, Reshard, ShardWriter, provision
from topics.kafka.client import ClientConfig
from topics.kafka.provisioning import provision_shard
from topics.keyspace.topology import ReshardEntry, ShardEntry, ShardState, Topology, update_topology
from topics.names import ShardTopics
from topics.progress.record import MarkKind

SECOND_US = 1_000_000
SPLIT = Reshard("r1", ("80-",), ("80-c0", "c0-"), 2 * SECOND_US)
MERGE = Reshard("r2", ("-80", "80-c0"), ("-c0",), 4 * SECOND_US)


class Keyspace:
    """Shards that are split and then merged, with rows in between."""

    def __init__(self, config: ClientConfig, name: str) -> None:
        self.config, self.name = config, name
        provision(config, name, ["-80", "80-"])
        self.writers = {s: ShardWriter(config, name, s) for s in ("-80", "80-")}
        self.genuine: dict[str, tuple[int, int]] = {}  # first and last seq of the stream

    def add(self, *shards: str) -> None:
        """Create the targets of a reshard."""
        for shard in shards:
            provision_shard(self.config, ShardTopics(self.name, shard))
            self.writers[shard] = ShardWriter(self.config, self.name, shard)

    def heads(self, at_us: int, *shards: str) -> None:
        """Promise a head for some shards."""
        for shard in shards:
            self.writers[shard].heartbeat(at_us)

    def rows(self) -> int:
        """The number of records in the stream."""
        return sum(last - first + 1 for first, last in self.genuine.values())

    def split(self) -> None:
        """Split a shard, and write rows to its targets."""
        self.add("80-c0", "c0-")
        self.writers["80-"].mark(SECOND_US, MarkKind.END, SPLIT)
        for shard in SPLIT.targets:
            self.writers[shard].commit((SECOND_US, 5))  # copied: not of the stream
            self.writers[shard].mark(2 * SECOND_US, MarkKind.BEGIN, SPLIT)
            self.writers[shard].commit((2 * SECOND_US, 5))
            self.genuine[shard] = (6, 11)
        self.genuine["80-"] = (1, 11)

    def merge(self) -> None:
        """Merge the left shard and the left target."""
        self.add("-c0")
        for n, shard in enumerate(MERGE.sources):
            self.writers[shard].mark(3 * SECOND_US + n, MarkKind.END, MERGE)
        self.writers["-c0"].commit((3 * SECOND_US, 3))
        self.writers["-c0"].mark(4 * SECOND_US, MarkKind.BEGIN, MERGE)
        self.writers["-c0"].commit((4 * SECOND_US, 7))
        self.genuine |= {"-80": (1, 11), "80-c0": (6, 12), "-c0": (4, 11)}

    def switch_topology(self, *switched: Reshard) -> None:
        """Write the topology that the switches leave."""
        reshards = tuple(
            ReshardEntry(r.reshard_id, r.sources, r.targets, "COMPLETED", START_US + r.hop_us)
            for r in switched
        )
        sources = {shard for r in switched for shard in r.sources}
        shards = tuple(
            ShardEntry(s, ShardState.RETIRED if s in sources else ShardState.SERVING)
            for s in self.writers
        )
        topology = Topology(self.name, len(switched), shards, reshards=reshards)
        update_topology(self.config, self.name, lambda _: topology)


def resharded(config: ClientConfig, name: str) -> Keyspace:
    """Two shards with ten rows each."""
    made = Keyspace(config, name)
    for shard in ("-80", "80-"):
        made.writers[shard].commit((1_000, 5), (500_000, 5))
        made.genuine[shard] = (1, 10)
    return made
