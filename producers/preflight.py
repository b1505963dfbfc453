"""Everything that is checked of a shard's servers before its producer starts.

`preflight` and `produce` call `shard_findings`. A new check of a server goes into one of the lists
of `producers.servers.server_checks`.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress

from databases.connection import open_connection
from databases.errors import ServerLost
from databases.grants import privileges_on
from databases.internal_tables import INTERNAL_DATABASE
from databases.server import Platform
from event_token.errors import ShardstreamError
from producers.errors import ClockUnknown, Findings, Problem
from producers.replication.stream import server_errors
from producers.servers.server_catalog import table_problems
from producers.servers.server_checks import (
    OTHER_CHECKS,
    UNREAD_CHECKS,
    CheckedServer,
    durability_findings,
    stream_findings,
)
from producers.session.heads import NO_INTERVAL, PRIVILEGES
from producers.settings import ShardProducerSettings


def shard_findings(settings: ShardProducerSettings, *, with_tables: bool = True) -> Findings:
    """Connect to every server and check it, the account's grants, and its tables.

    An unreachable server, refused credentials and failed TLS are problems too. No message shows a
    secret. A target of a reshard has no tables yet: `with_tables` is False then.
    """
    found = Findings()
    checked: list[CheckedServer] = []
    with ExitStack() as opened:
        for server in settings.servers:
            try:
                connection = opened.enter_context(closing(open_connection(server)))
            except ShardstreamError as error:
                fix = "check host, port, account, password and TLS files, and that the server runs"
                is_lost = isinstance(error, ServerLost)
                found.problems.append(Problem(str(error), server.name, fix, passing=is_lost))
                continue
            with server_errors(server, "checking"):
                checked.append(CheckedServer.ask(connection, server, settings))
        can_read = any(one.server.read and one.has_binlog for one in checked)
        for one in checked:
            with server_errors(one.server, "checking"):
                if one.server.read and not one.has_binlog and can_read:
                    _add(found, settings, _without_binlog(one))
                else:
                    _add(found, settings, _of_server(one, with_tables=with_tables))
        if len(checked) == len(settings.servers):
            with suppress(ShardstreamError):
                _add(found, settings, _heartbeat_warnings(settings, checked))
    return found


def _without_binlog(checked: CheckedServer) -> Iterator[str]:
    """A server that nothing can be read from, beside another one that has what it lacks."""
    who = "a reader of Aurora" if checked.platform is Platform.AURORA else "the server"
    yield (
        f"{checked.server.name}: {who} writes no binlog (log_bin is OFF), so it is left out; it is "
        "followed once it writes one, as after a failover"
    )


def _add(
    found: Findings, settings: ShardProducerSettings, findings: Iterator[Problem | str]
) -> None:
    for each in findings:
        if isinstance(each, Problem):
            found.problems.append(each)
        else:
            found.warnings.append(f"{settings.keyspace}.{settings.shard}: {each}")


def _of_server(checked: CheckedServer, *, with_tables: bool) -> Iterator[Problem | str]:
    server, settings = checked.server, checked.settings
    if server.read:
        yield from stream_findings(checked)
        if with_tables:
            yield from table_problems(checked.connection, server.name, settings)
    if checked.flavor is not settings.flavor:
        return
    if not server.read:
        yield from durability_findings(checked)
    for check in OTHER_CHECKS if server.read else UNREAD_CHECKS:
        # A producer runs without what these look at, or the problems name what they may not read.
        with suppress(ShardstreamError), server_errors(server, "checking"):
            yield from check(checked)


def _heartbeat_warnings(
    settings: ShardProducerSettings, checked: Sequence[CheckedServer]
) -> Iterator[str]:
    """What keeps heartbeat rows from being written where they are wanted."""
    has_replica = any(each.is_replica and each.server.read for each in checked)
    primaries = [each for each in checked if not each.is_replica]
    if has_replica and not primaries:
        yield (
            "a replica is read, but no primary is named that could take heartbeat rows, so an idle "
            "shard holds readers back: add it to `servers`, with `read = false` if nothing should "
            "be streamed from it"
        )
    if not has_replica and settings.heartbeat_rows != "always":
        return
    try:
        settings.host_clock.bound_us()
    except ClockUnknown as fault:
        yield f"{NO_INTERVAL}: {fault}"
    for primary in primaries:
        lacking = set(PRIVILEGES) - privileges_on(primary.connection, INTERNAL_DATABASE)
        if lacking and not primary.account.has("ALL PRIVILEGES"):
            yield (
                f"heartbeat rows cannot be written on {primary.server.name}: where a replica is "
                "read, an idle shard holds readers back, and fresh reads have no time. "
                f"GRANT {', '.join(PRIVILEGES)} ON {INTERNAL_DATABASE}.* TO {primary.account.name};"
            )
