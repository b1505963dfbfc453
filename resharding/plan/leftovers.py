"""What other reshards have left on the servers of a new one."""

from collections.abc import Mapping
from typing import Any

from databases.internal_tables import INTERNAL_DATABASE
from databases.sql import quoted
from resharding.bookkeeping import read_plan, read_roles, reshards_on
from topics.keyspace.topology import ReshardState, Topology


def other_roles(
    reshard_id: str, wanted: Mapping[str, str], where: str, connection: Any
) -> list[str]:
    """Shards that have another role under this id: those of another keyspace on the same server.

    `wanted`: the roles to be written. Fresh reads take them from there, and they name no keyspace.
    """
    return [
        f"{where}: shard {shard} is a {role} of a reshard {reshard_id} of another keyspace "
        "there: take another id"
        for shard, role in read_roles(connection, reshard_id).items()
        if wanted.get(shard, role) != role
    ]


def leftovers(reshard_id: str, topology: Topology, where: str, connection: Any) -> list[str]:
    """What other reshards have left on a target, each with the way to get rid of it."""
    states = {entry.reshard_id: entry.state for entry in topology.reshards}
    problems = []
    for name in reshards_on(connection):
        plan = read_plan(connection, name, where)
        keyspace = topology.keyspace if plan is None else plan.keyspace
        if keyspace != topology.keyspace:
            problems.append(
                f"{where}: it is a target of reshard {name} of keyspace {keyspace}: end that one "
                f"(shardstream reshard status {keyspace} says how), or take another server"
            )
            continue
        # One with the same id was left by a crash: the topology gets it only at the end.
        if name == reshard_id:
            continue
        state = states.get(name)
        if state == ReshardState.RUNNING.value:
            how = f"finish it or cancel it (shardstream reshard cancel {topology.keyspace} {name})"
        elif state == ReshardState.SWITCHED.value:
            how = f"run shardstream reshard complete {topology.keyspace} {name}"
        else:
            databases = sorted(topology.sharded_databases)
            drops = " ".join(
                f"DROP DATABASE IF EXISTS {quoted(d)};" for d in (*databases, INTERNAL_DATABASE)
            )
            how = f"stop its applier and producer, if they still run, and empty the server: {drops}"
        problems.append(
            f"{where}: it is a target of reshard {name}, which is "
            f"{state or 'not in the topology of this keyspace'}: {how}"
        )
    return problems
