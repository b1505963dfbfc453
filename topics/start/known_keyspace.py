"""Finds the keyspace that a reader names, or says what is missing."""

from event_token.errors import UsageError
from topics.errors import BrokersUnreachable, NoBrokerAnswers
from topics.kafka.client import ClientConfig, check_reachable
from topics.keyspace.topology import Topology, read_topology


def known_topology(config: ClientConfig, keyspace: str) -> Topology:
    """Return the topology of a keyspace, for a reader that begins.

    BrokersUnreachable (Retry) when no broker answers within ten seconds, UsageError when the
    keyspace has no topology.
    """
    try:
        check_reachable(config)
    except NoBrokerAnswers as error:  # a reader may start while the brokers restart
        raise BrokersUnreachable(str(error)) from error
    topology = read_topology(config, keyspace)
    if topology is None:
        raise UsageError(
            f"keyspace {keyspace} has no topology: either its name is misspelled, or no producer "
            f"of it has run yet"
        )
    return topology
