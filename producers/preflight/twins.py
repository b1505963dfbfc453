"""Servers of different shards that cannot be told apart.

MariaDB's GTIDs are domain, server id and number, those of MySQL server UUID and number: where all
but the number is equal, a log could be continued from another shard's server. Servers cloned from
one backup are such, until each gets another server id or UUID.
"""

import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

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

_SOURCES: Final = {
    Flavor.MARIADB: "SELECT @@GLOBAL.gtid_domain_id, @@server_id",
    Flavor.MYSQL: "SELECT @@server_uuid",
}
_SAID: Final = {
    Flavor.MARIADB: "gtid_domain_id {} and server_id {} are also those",
    Flavor.MYSQL: "server_uuid {} is also that",
}
_FIXES: Final = {
    Flavor.MARIADB: "SET GLOBAL server_id to an unused number, and the same in its option file",
    Flavor.MYSQL: "stop the server that was cloned, remove auto.cnf from its data directory, and "
    "start it: it gives itself a UUID. If its shard has a log, start a new one with a copy",
}


@dataclass(frozen=True, slots=True)
class _Named:
    """A server, by what its GTIDs (but for the number) and its identity row say."""

    shard: str
    settings: ServerSettings
    flavor: Flavor
    source: tuple[str, ...]
    identity: str = ""


def twin_problems(shards: Sequence[ShardProducerSettings]) -> list[tuple[str, Problem]]:
    """List servers whose GTIDs or identity equal those of another shard's, each with its shard.

    A server that serves several shards, by one address or by several, is one server. Servers that
    do not answer are skipped; the preflight lists them.
    """
    found = [
        named
        for shard in shards
        for server in shard.servers
        if (named := _ask(shard, server)) is not None
    ]
    problems = []
    for index, one in enumerate(found):
        for other in found[:index]:
            if one.shard == other.shard or one.settings.name == other.settings.name:
                continue
            equal = _compare(one, other)
            if equal and not _is_same_server(one.settings, other.settings):
                problems += [(one.shard, problem) for problem in equal]
    return problems


def _ask(shard: ShardProducerSettings, server: ServerSettings) -> _Named | None:
    name = f"{shard.keyspace}/{shard.shard}"
    with (
        suppress(ShardstreamError),
        closing(open_connection(server)) as connection,
        server_errors(server, "asking for the identity of"),
    ):
        [values] = rows(connection, _SOURCES[shard.flavor])
        identity = "" if shard.flavor is Flavor.MYSQL else _identity(connection, server)
        return _Named(name, server, shard.flavor, tuple(map(str, values)), identity)
    return None


def _is_same_server(one: ServerSettings, other: ServerSettings) -> bool:
    """Whether two addresses lead to one server: a lock that is held on it is seen by both."""
    lock = f"shardstream.twin.{secrets.token_hex(8)}"
    with (
        suppress(ShardstreamError),
        closing(open_connection(one)) as holder,
        closing(open_connection(other)) as looker,
        server_errors(other, "looking for a lock on"),
    ):
        rows(holder, "SELECT GET_LOCK(%s, 0)", (lock,))
        return rows(looker, "SELECT IS_USED_LOCK(%s) IS NOT NULL", (lock,)) == [(1,)]
    return False


def _identity(connection: Any, server: ServerSettings) -> str:
    """The identity row; "" where the account may not read it, which is a warning."""
    with suppress(ServerRefused), server_errors(server, "reading the identity of"):
        return read_identity(connection)
    return ""


def _compare(one: _Named, other: _Named) -> list[Problem]:
    problems = []
    if (one.flavor, one.source) == (other.flavor, other.source):
        what = (
            f"{_SAID[one.flavor].format(*one.source)} of {other.settings.name} of shard "
            f"{other.shard}, so their GTIDs cannot be told apart"
        )
        problems.append(Problem(what, one.settings.name, _FIXES[one.flavor]))
    if one.identity and one.identity == other.identity:
        what = (
            f"the identity {one.identity} in {IDENTITY} is also that of {other.settings.name} of "
            f"shard {other.shard}: one server was made from a copy of the other"
        )
        fix = f"on the primary of the shard that has no log yet: DROP TABLE {IDENTITY};"
        problems.append(Problem(what, one.settings.name, fix))
    return problems
