"""What an operator should know about a shard's servers, though nothing is refused for it."""

from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any, Final

from databases.connection import open_connection
from databases.grants import Account, privileges_on, read_account
from databases.internal_tables import INTERNAL_DATABASE
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.preflight.durability import durability_warnings
from producers.replication.family import family_of
from producers.replication.stream import server_errors
from producers.servers.identity import WRITE_PRIVILEGES, identity_grant
from producers.session.heads import clock_ahead_us, now_us
from producers.settings import ServerSettings, ShardProducerSettings

# A producer may be down over a night before someone looks after it.
BINLOG_KEPT_S_MIN: Final = 86_400
# Hosts that synchronize their clocks differ by milliseconds; those that do not, soon by seconds.
_CLOCK_OFF_US_MAX: Final = 500_000


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
    found = _clock_warnings(connection, server, settings)
    if server.read:
        found += _binlog_warnings(connection, server)
    account = read_account(connection)
    # The preflight lists the missing grant.
    if not account.has("REPLICATION CLIENT"):
        return found
    flavor = settings.flavor
    is_replica = family_of(flavor).is_replica(connection)
    if flavor is Flavor.MARIADB:
        found += _identity_warnings(connection, server, account, is_replica=is_replica)
    if is_replica and not settings.accept_loss_at_server_crash:
        found += durability_warnings(connection, server, flavor)
    return found


def _clock_warnings(
    connection: Any, server: ServerSettings, settings: ShardProducerSettings
) -> list[str]:
    asked_us = now_us()
    clock_us = family_of(settings.flavor).moment(connection).clock_us
    ahead_us = clock_ahead_us(asked_us, clock_us, now_us())
    if abs(ahead_us) <= _CLOCK_OFF_US_MAX:
        return []
    text = (
        f"{server.name}: its clock is {abs(ahead_us) / 1_000_000:.1f} s "
        f"{'ahead of' if ahead_us > 0 else 'behind'} this host's, and shards are merged by commit "
        "time: synchronize both (NTP)"
    )
    return [text]


def _binlog_warnings(connection: Any, server: ServerSettings) -> list[str]:
    variables = _binlog_variables(connection)
    warnings = []
    image = variables.get("binlog_row_image", "FULL")
    if image != "FULL":
        warnings.append(
            f"{server.name}: binlog_row_image is {image}: events lack columns, and copies, key "
            "ranges and reshards stop at such rows; SET GLOBAL binlog_row_image = FULL, and the "
            "same in the option file"
        )
    kept_s = kept_seconds(variables)
    if kept_s is not None and kept_s < BINLOG_KEPT_S_MIN:
        warnings.append(
            f"{server.name}: binlogs expire after {kept_s} s: a producer that is down for longer "
            "cannot continue its log; SET GLOBAL binlog_expire_logs_seconds to more than the "
            "longest outage, and the same in the option file"
        )
    return warnings


def _binlog_variables(connection: Any) -> dict[str, str]:
    names = "'binlog_row_image', 'binlog_expire_logs_seconds', 'expire_logs_days'"
    names += ", 'binlog_expire_logs_auto_purge'"
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    return {str(name): str(value) for name, value in found}


def binlog_kept_s(connection: Any, server: ServerSettings) -> int | None:
    """For how long a server keeps binlogs, None for ever. Raises ServerLost, ServerRefused."""
    with server_errors(server, "asking how long binlogs are kept on"):
        return kept_seconds(_binlog_variables(connection))


def kept_seconds(variables: Mapping[str, str]) -> int | None:
    """For how long a server with these variables keeps binlogs; None for ever. Pure."""
    if variables.get("binlog_expire_logs_auto_purge", "ON") in {"OFF", "0"}:
        return None
    days = float(variables.get("expire_logs_days", "0"))
    seconds = int(variables.get("binlog_expire_logs_seconds", "0")) or int(days * 86_400)
    return seconds or None


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
