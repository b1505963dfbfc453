"""Which of a shard's servers is the primary: asked of the servers, not of the settings."""

from collections.abc import Sequence
from typing import Any

from databases.connection import server_errors
from databases.errors import ServerLost, ServerRefused, ServerSilent
from databases.server_facts import facts_of
from event_token.errors import UsageError
from resharding.server import ReshardServer, open_session


def takes_writes(connection: Any, server: ReshardServer) -> bool:
    """Whether the server is a primary that applications may write to."""
    with server_errors(server, "asking for the role of"):
        return facts_of(server.flavor).takes_writes(connection)


def find_primary(servers: Sequence[ReshardServer]) -> ReshardServer:
    """The one of a shard's servers that takes writes.

    Servers that do not answer are left out if another one is the primary. Raises ServerSilent when
    none of them answers, ServerLost or ServerRefused when none is the primary and some do not
    answer or refuse, UsageError when none or several are.
    """
    primaries: list[ReshardServer] = []
    others: list[str] = []
    silent: list[ServerSilent] = []
    refusing: list[ServerLost | ServerRefused] = []
    for server in servers:
        try:
            with open_session(server) as connection:
                takes = takes_writes(connection, server)
                primaries += [server] if takes else []
                others += [] if takes else [server.name]
        except ServerSilent as error:
            silent.append(error)
        except (ServerLost, ServerRefused) as error:
            refusing.append(error)
    if len(primaries) == 1:
        return primaries[0]
    if primaries:
        names = " and ".join(server.name for server in primaries)
        raise UsageError(
            f"{names} take writes: a reshard needs one primary per shard. Set read_only on those "
            f"that are not"
        )
    if refusing:
        raise refusing[0]
    if silent and others:
        raise ServerLost(
            f"{silent[0]}; {', '.join(others)} answers and is a replica or read-only: promote it "
            f"if the primary is lost"
        )
    if silent:
        raise silent[0]
    raise UsageError(
        f"no primary among {', '.join(others)}: each is a replica or read-only. Promote the right "
        f"one (read_only may have been left on), or add the primary to `servers` in the settings"
    )
