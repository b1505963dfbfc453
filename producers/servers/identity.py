"""Whether a MariaDB server belongs to the shard whose log it is to continue.

MariaDB's GTIDs have no UUID, so another shard's server may seem to have executed what the log
holds. A random row in `_shardstream.identity`, which replicates, is the same on all servers of a
shard and on no other. MySQL needs none: its GTIDs begin with the UUID of the server that wrote
them.
"""

import secrets
import time
import uuid
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

from databases.connection import open_connection, rows_if_there, write_row
from databases.errors import ServerLost, ServerRefused
from databases.grants import read_account
from databases.internal_tables import IDENTITY, create_statements
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.errors import Problem, WrongServer
from producers.replication.stream import server_errors
from producers.servers.server_checks import identity_grant
from producers.servers.server_list import OpenServer
from producers.settings import ServerSettings, ShardProducerSettings

# A replica has a new row within milliseconds, or else the next session finds it.
_REPLICATED_S_MAX: Final = 1.0
_POLL_S: Final = 0.05
_INSERT: Final = f"INSERT IGNORE INTO {IDENTITY} VALUES (1, %s)"  # noqa: S608 - our own name
_REPLACE: Final = f"REPLACE INTO {IDENTITY} VALUES (1, '{{}}');"  # noqa: S608 - likewise


@dataclass(frozen=True, slots=True)
class ShardIdentity:
    """`known`: the identity that the log holds, "" for none.

    `found`: the server's, which the log takes once it has reached `executed`. `note`: for the
    operator, "" for none.
    """

    known: str = ""
    found: str = ""
    executed: str = ""
    note: str = ""


def prove_identity(server: OpenServer, primary: OpenServer | None, known: str) -> ShardIdentity:
    """Compare the server's identity with the log's; write one if there is none.

    Raises WrongServer if they differ, ServerRefused if the account may not read the server's,
    and ServerLost. What keeps a first identity from being written is noted.
    """
    if server.family.flavor is not Flavor.MARIADB:
        return ShardIdentity()
    if known:
        check_identity(server, known)
        return ShardIdentity(known)
    why = "no primary answers that it could be written on"
    try:
        found = _read(server)
        if not found and primary is not None:
            why = f"the row of {primary.name} has not been replicated yet"
            _write(primary)
            found = _await(server)
    except (ServerRefused, ServerLost) as fault:
        found, why = "", str(fault)
    if not found:
        return ShardIdentity(
            note=f"{server.name} has no row in {IDENTITY} to prove its shard: {why}"
        )
    return ShardIdentity(found=found, executed=str(server.history().executed))


def check_identity(server: OpenServer, known: str) -> None:
    """Raise WrongServer unless the server has the identity that the log holds."""
    found = _read(server)
    if found == known:
        return
    has = (
        f"is {found}: it belongs to another shard"
        if found
        else ("is missing: nothing shows that it belongs to this shard")
    )
    raise WrongServer(
        f"{server.topics.log} was read from the servers with identity {known}, but that of "
        f"{server.name} ({IDENTITY}) {has}. Correct the address in the settings, or "
        "where it leads to. If this is the right server, which has lost the row: "
        + "; ".join([*create_statements((IDENTITY,)), _REPLACE.format(known)])
    )


def read_identity(connection: Any) -> str:
    """The identity of the family that a server belongs to, "" for none."""
    found = rows_if_there(connection, f"SELECT uuid FROM {IDENTITY}")  # noqa: S608 - our own name
    return str(found[0][0]) if found else ""


def write_identity(connection: Any) -> None:
    """Write a random identity, unless there is one."""
    write_row(connection, IDENTITY, _INSERT, (str(uuid.uuid4()),))


def _read(server: OpenServer) -> str:
    try:
        with server_errors(server.settings, "reading the identity of"):
            return read_identity(server.connection)
    except ServerRefused as refusal:
        raise _with_grant(server, refusal) from refusal


def _write(primary: OpenServer) -> None:
    try:
        with server_errors(primary.settings, "writing an identity on"):
            write_identity(primary.connection)
    except ServerRefused as refusal:
        raise _with_grant(primary, refusal) from refusal


def _with_grant(server: OpenServer, refusal: ShardstreamError) -> ServerRefused:
    with server_errors(server.settings, "reading the grants of"):
        account = read_account(server.connection)
    return ServerRefused(f"{refusal}. Fix: {identity_grant(account.name)}")


def _await(server: OpenServer) -> str:
    """Wait briefly for the row, which may come by replication."""
    deadline_s = time.monotonic() + _REPLICATED_S_MAX
    while True:
        found = _read(server)
        if found or time.monotonic() > deadline_s:
            return found
        time.sleep(_POLL_S)


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
            f"{other.shard}, so their GTIDs cannot be distinguished"
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
