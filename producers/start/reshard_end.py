"""What the END of a reshard means to a producer: which logs have one, and which rows it stops."""

import functools

from event_token.errors import UsageError
from topics.errors import NoBrokerAnswers
from topics.kafka.client import ClientConfig
from topics.keyspace.topology import ReshardState, Topology, read_topology
from topics.names import ShardTopics
from topics.records.schema_ids import SchemaIds
from topics.stream.log_marks import marks_at_end


def ended_by(config: ClientConfig, topics: ShardTopics, schema_ids: SchemaIds) -> tuple[str, ...]:
    """The reshards whose END the log holds, and whose CANCELLED it does not hold.

    Raises Retry when Kafka does not answer.
    """

    @functools.cache
    def asked_once(database: str) -> bool:
        return is_sharded(config, topics.keyspace, database)

    marks = marks_at_end(config, topics, schema_ids, asked_once)
    return tuple(sorted(mark.reshard_id for mark in marks.values() if mark.kind == "END"))


def is_cancelled(config: ClientConfig, keyspace: str, reshard_id: str) -> bool:
    """Whether the topology says by now that a reshard is cancelled.

    That comes before the CANCELLED rows of the sources: rows in front of them are ordinary. Raises
    Retry or NoBrokerAnswers.
    """
    topology = _topology(config, keyspace)
    return topology is not None and any(
        entry.reshard_id == reshard_id and entry.state == ReshardState.CANCELLED.value
        for entry in topology.reshards
    )


def is_sharded(config: ClientConfig, keyspace: str, database: str) -> bool:
    """Whether a table of the database has a vindex in the topology by now.

    Without vindexes every database counts: nothing was resharded, and a search for END that passed
    over all rows would read the whole log. Raises Retry or NoBrokerAnswers.
    """
    topology = _topology(config, keyspace)
    if topology is None or not topology.vindexes:
        return True
    return database in topology.sharded_databases


def _topology(config: ClientConfig, keyspace: str) -> Topology | None:
    try:
        return read_topology(config, keyspace)
    except NoBrokerAnswers:
        raise
    except UsageError:  # the topic does not exist
        return None
