"""Finds a reshard: its entry in the topology, and its plan on a target."""

from databases.connection import server_errors
from event_token.errors import UsageError
from resharding.bookkeeping import read_plan
from resharding.plan.reshard_plan import ReshardPlan
from resharding.server import ReshardServer, open_session
from shardstream.settings.model import Settings
from topics.keyspace.topology import ReshardEntry, read_topology


def reshard_entry(settings: Settings, keyspace: str, reshard_id: str) -> ReshardEntry:
    """Return the entry of a reshard in the topology; UsageError lists the reshards there are."""
    settings.keyspace(keyspace)
    topology = read_topology(settings.kafka_client(), keyspace)
    reshards = () if topology is None else topology.reshards
    for entry in reshards:
        if entry.reshard_id == reshard_id:
            return entry
    known = ", ".join(entry.reshard_id for entry in reshards) or "none"
    raise UsageError(f"keyspace {keyspace} has no reshard {reshard_id!r}; its reshards: {known}")


def plan_on(server: ReshardServer, reshard_id: str) -> ReshardPlan:
    """Return the plan of a reshard as a target holds it; UsageError when it has none."""
    connection = open_session(server)
    try:
        with server_errors(server, "reading the reshard's plan on"):
            plan = read_plan(connection, reshard_id, server.name)
    finally:
        connection.close()
    if plan is None:
        raise UsageError(
            f"{server.name} is not a target of reshard {reshard_id}; "
            f"run `shardstream reshard create` first"
        )
    return plan
