"""The ends of a keyspace's logs, at which floors are made (rules 9 and 10)."""

from collections.abc import Iterable, Mapping

from caching.protocol.freshness import joined
from event_token import EventToken, Flavor, parse_gtid_set
from topics.errors import StartNotReached
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.keyspace.topology import ReshardState, ShardState, Topology
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import MarkKind
from topics.records.envelope import read_envelope
from topics.records.schema_ids import SchemaIds
from topics.start.known_keyspace import known_topology
from topics.stream.target_marks import TargetMarks


def log_ends(
    config: ClientConfig, keyspace: str, schema_ids: SchemaIds, read: Iterable[str]
) -> Mapping[str, EventToken]:
    """Return a token per shard that is not older than any change that anybody can have applied.

    All shards that serve, those of `read` (of the caller's position), and the targets of a reshard
    that have begun while the topology does not say so yet: without their BEGIN, readers that are
    left on the sources could still fill. StartNotReached (Retry) for a shard without progress, and
    Retry when Kafka does not answer.
    """
    topology = known_topology(config, keyspace)
    retired = {entry.name for entry in topology.shards if entry.state is ShardState.RETIRED}
    shards = {entry.name for entry in topology.serving()} | (set(read) - retired)
    shards |= _begun(config, topology, schema_ids)
    ends: dict[str, EventToken] = {}
    for shard in sorted(shards):
        ends = joined(ends, _end(config, ShardTopics(keyspace, shard), schema_ids))
    return ends


def _begun(config: ClientConfig, topology: Topology, schema_ids: SchemaIds) -> set[str]:
    """Return the targets whose logs hold BEGIN, of reshards that are decided and not switched."""
    begun: set[str] = set()
    for reshard in topology.reshards:
        if reshard.state == ReshardState.RUNNING.value and reshard.decision is not None:
            marks = TargetMarks(config, topology.keyspace, reshard.reshard_id, schema_ids)
            found = marks.look(reshard.targets)
            begun |= {shard for shard, mark in found.items() if mark.kind is MarkKind.BEGIN}
    return begun


def _end(config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds) -> EventToken:
    """Return the token of a log's end: its last position, at the time of its last record.

    The head may lie beyond END, and then a target's BEGIN would not be newer.
    """
    progress = last_progress(config, topics, schema_ids)
    if progress is None:
        raise StartNotReached(
            f"shard {topics.shard}: its log has no progress yet, so floors cannot be made. Is its "
            f"producer running?"
        )
    last = read_tail(config, topics.log).last
    time_us = progress.head_us
    if last is not None:
        time_us = read_envelope(last.value or b"", topics.log, last.offset)[2]
    position = parse_gtid_set(progress.position, Flavor(progress.flavor))
    return EventToken(time_us, topics.shard, position)
