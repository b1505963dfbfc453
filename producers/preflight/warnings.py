"""What an operator should know about a shard's servers, though nothing is refused for it."""

from contextlib import closing, suppress
from typing import Any

from databases.connection import open_connection
from databases.grants import read_account
from event_token.errors import ShardstreamError
from producers.preflight.durability import durability_warnings
from producers.replication.family import family_of
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings


def server_warnings(settings: ShardProducerSettings) -> list[str]:
    """One line per finding. Servers that do not answer are skipped; the preflight lists them."""
    found: list[str] = []
    for server in settings.servers:
        with (
            suppress(ShardstreamError),
            closing(open_connection(server)) as connection,
            server_errors(server, "checking the settings of"),
        ):
            found += _of_server(connection, server, settings)
    return [f"{settings.keyspace}.{settings.shard}: {text}" for text in found]


def _of_server(
    connection: Any, server: ServerSettings, settings: ShardProducerSettings
) -> list[str]:
    flavor = settings.flavor
    # The preflight lists the missing grant.
    if not read_account(connection).has("REPLICATION CLIENT"):
        return []
    is_replica = family_of(flavor).is_replica(connection)
    if is_replica and not settings.accept_loss_at_server_crash:
        return durability_warnings(connection, server, flavor)
    return []
