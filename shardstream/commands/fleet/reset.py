"""`shardstream topics reset`: empty the topics of a shard, so that a new log begins.

Nothing in between may pass for a log. The copy topic goes first: a new log must not take the copies
of the old one for its own. Without progress a producer refuses a log that has records. The log
itself is emptied rather than deleted: its next record takes a higher offset than any before, so
that each position of the old log is known as such.
"""

from dataclasses import dataclass

from event_token.errors import UsageError
from producers.shard_log.publisher import Publisher
from shardstream.commands.fleet.retire import check_producer
from shardstream.settings.model import Settings
from topics.fleet.look import FleetWatch
from topics.kafka.client import ClientConfig, open_admin
from topics.kafka.deletion import delete_topics, empty_topic
from topics.keyspace.topology import UNDER_WAY, ShardState, Topology, read_topology
from topics.names import ShardTopics
from topics.readers.feed import read_readers
from topics.readers.passed import not_passed
from topics.schemas.registry import open_schema_ids

# For one aborted transaction without rows.
_TRANSACTION_MS = 60_000


@dataclass(frozen=True, slots=True)
class Reset:
    """A reset that nothing speaks against; `loses` says what it deletes, and who reads it."""

    config: ClientConfig
    topics: ShardTopics
    loses: str


def plan_reset(settings: Settings, keyspace: str, shard: str) -> Reset:
    """Look at a shard. UsageError while it is resharded, has ended, or has a running producer."""
    client = settings.kafka_client()
    topics = ShardTopics(keyspace, shard)
    topology = read_topology(client, keyspace)
    if topology is None:
        raise UsageError(f"keyspace {keyspace} has no topology: start a producer of it first")
    _check_shard(topology, shard)
    schema_ids = open_schema_ids(client, settings.kafka.schema_registry_url)
    with FleetWatch(client, schema_ids) as fleet:
        view = {view.shard: view for view in fleet.look(keyspace).shards}[shard]
    check_producer(keyspace, view)
    readers = sorted({r.name for r in not_passed(read_readers(client, keyspace), topology, shard)})
    read_by = f"named readers {', '.join(readers)}" if readers else "no named reader"
    loses = (
        f"{keyspace}/{shard}: all records of {topics.log}, its progress and its copies are lost. "
        f"{read_by} and readers without a name that have not read to its end miss the rest; all of "
        f"them stop with LogShrank, and start again at copy or earliest"
    )
    return Reset(client, topics, loses)


def run_reset(reset: Reset, reason: str) -> str:
    """Fence the producer and empty the topics; return what to print. Again after an interruption.

    Fenced when a producer takes the shard over meanwhile; Retry when the brokers do not answer.
    """
    config, topics = reset.config, reset.topics
    existing = open_admin(config).list_topics().topics.keys()
    publisher = Publisher(config, topics, _TRANSACTION_MS, lambda: False)
    try:
        publisher.fence()
        if existing >= set(topics.written):
            publisher.abort_open()  # what the brokers may have left open
        delete_topics(config, (topics.copy, topics.progress))
        start = empty_topic(config, topics.log) if topics.log in existing else 0
    finally:
        publisher.close()
    return (
        f"{topics.keyspace}/{topics.shard}: emptied; the next log begins at offset {start} "
        f"(reason: {reason}). Start it: shardstream produce {topics.keyspace} {topics.shard} "
        f"--from ..., then copy the tables: shardstream copy start {topics.keyspace}"
    )


def _check_shard(topology: Topology, shard: str) -> None:
    where = f"keyspace {topology.keyspace}, shard {shard}"
    states = {entry.name: entry.state for entry in topology.shards}
    if shard not in states:
        raise UsageError(f"{where}: there is no such shard (shards: {', '.join(states)})")
    if states[shard] is ShardState.RETIRED:
        raise UsageError(f"{where}: it has ended: run shardstream topology retire")
    for reshard in topology.reshards:
        if reshard.state in UNDER_WAY and shard in {*reshard.sources, *reshard.targets}:
            raise UsageError(
                f"{where}: reshard {reshard.reshard_id} is {reshard.state}: cancel or complete it "
                f"first"
            )
