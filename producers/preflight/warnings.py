"""What an operator should know about a shard's servers, though nothing is refused for it."""

from contextlib import closing, suppress
from typing import Any

from databases.connection import open_connection
from databases.grants import Account, privileges_on, read_account
from databases.internal_tables import INTERNAL_DATABASE
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.preflight.durability import durability_warnings
from producers.replication.family import family_of
from producers.replication.stream import server_errors
from producers.servers.identity import WRITE_PRIVILEGES, identity_grant
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
    account = read_account(connection)
    # The preflight lists the missing grant.
    if not account.has("REPLICATION CLIENT"):
        return []
    flavor = settings.flavor
    is_replica = family_of(flavor).is_replica(connection)
    found = []
    if flavor is Flavor.MARIADB:
        found += _identity_warnings(connection, server, account, is_replica=is_replica)
    if is_replica and not settings.accept_loss_at_server_crash:
        found += durability_warnings(connection, server, flavor)
    return found


def _identity_warnings(
    connection: Any, server: ServerSettings, account: Account, *, is_replica: bool
) -> list[str]:
    needed = {"SELECT"} if is_replica else set(WRITE_PRIVILEGES)
    lacking = needed - privileges_on(connection, INTERNAL_DATABASE)
    if not lacking or account.has("ALL PRIVILEGES"):
        return []
    doing = "read" if is_replica else "written"
    text = (
        f"{server.name}: the row that proves to which shard a server belongs cannot be {doing}, "
        f"so another shard's server would be followed: {identity_grant(account.name)}"
    )
    return [text]
