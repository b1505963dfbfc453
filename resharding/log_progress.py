"""How far shard logs are, compared with what their servers have executed."""

from typing import Any

from databases.server_facts import facts_of
from event_token import Flavor, GtidSet, parse_gtid_set
from topics.kafka.client import ClientConfig
from topics.kafka.partition_reader import read_tail
from topics.names import ShardTopics
from topics.progress.codec import decode_progress
from topics.progress.record import Progress
from topics.records.schema_ids import SchemaIds


def executed_set(connection: Any, flavor: Flavor) -> GtidSet:
    """All transactions that the server has executed by now."""
    return parse_gtid_set(facts_of(flavor).moment(connection).executed, flavor)


def last_progress(
    config: ClientConfig, keyspace: str, shard: str, schema_ids: SchemaIds
) -> Progress | None:
    """The last committed progress record of a shard; None where there is none."""
    topic = ShardTopics(keyspace, shard).progress
    last = read_tail(config, topic).last
    return None if last is None else decode_progress(last.value, schema_ids, topic)


def has_reached(progress: Progress | None, executed: GtidSet) -> bool:
    """Whether a log holds everything that its server had executed."""
    if progress is None:
        return False
    return parse_gtid_set(progress.position, executed.flavor).includes(executed)
