"""Servers of different shards of MariaDB that cannot be told apart.

Their GTIDs are domain, server id and number: where the first two are equal, a log could be
continued from another shard's server.
"""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from databases.connection import open_connection
from databases.errors import ServerRefused
from databases.internal_tables import IDENTITY
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.errors import Problem
from producers.replication.stream import server_errors
from producers.servers.identity import read_identity
from producers.settings import ServerSettings, ShardProducerSettings


@dataclass(frozen=True, slots=True)
class _Named:
    """A server, by all that its GTIDs and its identity row say."""

    shard: str
    server: str
    domain: int
    server_id: int
    identity: str


def twin_problems(shards: Sequence[ShardProducerSettings]) -> list[tuple[str, Problem]]:
    """List servers whose GTIDs or identity equal those of another shard's, each with its shard.

    A server that is named for several shards is one server. Servers that do not answer are
    skipped; the preflight lists them.
    """
    found = [
        named
        for shard in shards
        if shard.flavor is Flavor.MARIADB
        for server in shard.servers
        if (named := _ask(f"{shard.keyspace}/{shard.shard}", server)) is not None
    ]
    problems = []
    for index, one in enumerate(found):
        for other in found[:index]:
            if one.shard != other.shard and one.server != other.server:
                problems += [(one.shard, problem) for problem in _compare(one, other)]
    return problems


def _ask(shard: str, server: ServerSettings) -> _Named | None:
    with (
        suppress(ShardstreamError),
        closing(open_connection(server)) as connection,
        server_errors(server, "asking for the identity of"),
    ):
        [(domain, server_id)] = rows(connection, "SELECT @@GLOBAL.gtid_domain_id, @@server_id")
        return _Named(
            shard, server.name, int(domain), int(server_id), _identity(connection, server)
        )
    return None


def _identity(connection: Any, server: ServerSettings) -> str:
    """The identity row; "" where the account may not read it, which is a warning."""
    with suppress(ServerRefused), server_errors(server, "reading the identity of"):
        return read_identity(connection)
    return ""


def _compare(one: _Named, other: _Named) -> list[Problem]:
    problems = []
    if (one.domain, one.server_id) == (other.domain, other.server_id):
        what = (
            f"gtid_domain_id {one.domain} and server_id {one.server_id} are also those of "
            f"{other.server} of shard {other.shard}, so their GTIDs cannot be told apart"
        )
        fix = "SET GLOBAL server_id to a number of its own, and the same in its option file"
        problems.append(Problem(what, one.server, fix))
    if one.identity and one.identity == other.identity:
        what = (
            f"the identity {one.identity} in {IDENTITY} is also that of {other.server} of shard "
            f"{other.shard}: one server was made from a copy of the other"
        )
        fix = f"on the primary of the shard that has no log yet: DROP TABLE {IDENTITY};"
        problems.append(Problem(what, one.server, fix))
    return problems
