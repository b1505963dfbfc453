"""`complete`: removes what a finished reshard has left on its servers and in topics."""

import logging
from collections.abc import Sequence
from typing import Final

from databases.catalog import list_tables
from databases.connection import lost_or_refused, server_errors
from databases.errors import ServerLost
from databases.internal_tables import INTERNAL_DATABASE
from event_token.errors import Rebuild, Retry, UsageError
from resharding.progress import any_account_locked, is_held
from resharding.servers import open_session
from resharding.switch.decision import entry_of, moved
from resharding.switch.shard_writes import SwitchSettings
from topics.keyspace.topology import (
    UNDER_WAY,
    ReshardState,
    Topology,
    read_topology,
    update_topology,
)
from topics.named_readers import forget_appliers

_LOG: Final = logging.getLogger("shardstream.reshard")


def remove_reports(settings: SwitchSettings) -> None:
    """Remove them; nobody reads them any more, and a compacted topic would keep them for ever.

    The command has done its work by then: a failure is a warning, and the next one removes them.
    """
    try:
        topology = read_topology(settings.kafka, settings.keyspace)
        reshards = () if topology is None else topology.reshards
        under_way = {entry.reshard_id for entry in reshards if entry.state in UNDER_WAY}
        forget_appliers(settings.kafka, settings.keyspace, under_way)
    except (UsageError, Retry, Rebuild) as error:
        _LOG.warning("reports of appliers stay in the readers' topic: %s", error)


# The journal stays: a paused command that resumes late must find its row.
_TABLES = ("role", "checkpoint", "verified", "aside", "last_aside", "plan")


def run_complete(settings: SwitchSettings) -> list[str]:
    """Remove the reshard's roles, checkpoints, plan, results and reports; return what is left.

    Servers of shards that serve no more may be gone already, from the settings too, or refuse the
    account or writes: what could not be removed there is returned, one line each.
    Raises UsageError unless the reshard is switched and its targets are open. Can be run again.
    """
    topology = read_topology(settings.kafka, settings.keyspace)
    entry = entry_of(topology, settings.keyspace, settings.reshard_id)
    if entry.state not in {ReshardState.SWITCHED.value, ReshardState.COMPLETED.value}:
        raise UsageError(
            f"reshard {settings.reshard_id} is {entry.state}: only a switched one can be completed"
        )
    assert topology is not None  # noqa: S101 - it has the reshard
    serving = {shard.name for shard in topology.serving()}
    if entry.state == ReshardState.SWITCHED.value:
        _refuse_closed(settings, topology, [t for t in entry.targets if t in serving])
    left = []
    for shard in (*entry.targets, *entry.sources):
        try:
            _remove(settings, shard)
        except (ServerLost, UsageError) as error:
            if shard in serving:
                raise
            left.append(f"shard {shard} keeps its rows in {INTERNAL_DATABASE}: {error}")
    update_topology(
        settings.kafka,
        settings.keyspace,
        lambda before: moved(
            before, settings.keyspace, settings.reshard_id, ReshardState.COMPLETED
        ),
        settings.reason,
    )
    remove_reports(settings)
    return left


def _refuse_closed(settings: SwitchSettings, topology: Topology, targets: Sequence[str]) -> None:
    """UsageError if `switch` has yet to open a target: it needs what `complete` removes."""
    closed = []
    for target in targets:
        server = settings.server_of(target)
        doing = "looking at the accounts of"
        with open_session(server) as connection, server_errors(server, doing, lost_or_refused):
            if any_account_locked(connection, settings.accounts) and not is_held(
                connection, topology, target, settings.reshard_id
            ):
                closed.append(target)
    if closed:
        raise UsageError(
            f"reshard {settings.reshard_id}: writes are still stopped on {', '.join(closed)}: "
            f"first run `shardstream reshard switch {settings.keyspace} {settings.reshard_id}`, "
            f"which opens them"
        )


def _remove(settings: SwitchSettings, shard: str) -> None:
    server = settings.server_of(shard)
    connection = open_session(server)
    try:
        with server_errors(server, "cleaning up", lost_or_refused):
            there = {entry.table for entry in list_tables(connection, (INTERNAL_DATABASE,))}
            with connection.cursor() as cursor:
                for table in sorted(there & set(_TABLES)):
                    cursor.execute(
                        f"DELETE FROM {INTERNAL_DATABASE}.{table} WHERE reshard_id = %s",
                        (settings.reshard_id,),
                    )
    finally:
        connection.close()
