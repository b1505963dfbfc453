"""Whether a MariaDB server belongs to the shard whose log it is to continue.

MariaDB's GTIDs have no UUID, so another shard's server may seem to have executed what the log
holds. A random row in `_shardstream.identity`, which replicates, is the same on all servers of a
shard and on no other. MySQL needs none: its GTIDs begin with the UUID of the server that wrote
them.
"""

import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from pymysql.constants import ER
from pymysql.err import MySQLError

from databases.connection import error_code
from databases.errors import ServerLost, ServerRefused
from databases.grants import read_account
from databases.internal_tables import IDENTITY, create_internal_tables, create_statements
from databases.sql import rows
from event_token import Flavor
from event_token.errors import ShardstreamError
from producers.errors import WrongServer
from producers.replication.stream import server_errors
from producers.servers.server_list import OpenServer
from topics.names import ShardTopics

WRITE_PRIVILEGES: Final = ("CREATE", "SELECT", "INSERT")
# A replica has a new row within milliseconds, or else the next session finds it.
_REPLICATED_S_MAX: Final = 1.0
_POLL_S: Final = 0.05
_INSERT: Final = f"INSERT IGNORE INTO {IDENTITY} VALUES (1, %s)"  # noqa: S608 - our own name
_REPLACE: Final = f"REPLACE INTO {IDENTITY} VALUES (1, '{{}}');"  # noqa: S608 - likewise
_MISSING: Final = frozenset({ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE})


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


def prove_identity(
    topics: ShardTopics, server: OpenServer, primary: OpenServer | None, known: str
) -> ShardIdentity:
    """Compare the server's identity with the log's; write one if there is none.

    Raises WrongServer if they differ, ServerRefused if the account may not read the server's,
    and ServerLost. What keeps a first identity from being written is noted.
    """
    if server.family.flavor is not Flavor.MARIADB:
        return ShardIdentity()
    if known:
        check_identity(topics, server, known)
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


def check_identity(topics: ShardTopics, server: OpenServer, known: str) -> None:
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
        f"{topics.log} was read from the servers with identity {known}, but that of {server.name} "
        f"({IDENTITY}) {has}. Correct the address in the settings, or "
        "where it leads to. If this is the right server, which has lost the row: "
        + "; ".join([*create_statements((IDENTITY,)), _REPLACE.format(known)])
    )


def read_identity(connection: Any) -> str:
    """The identity of the family that a server belongs to, "" for none."""
    try:
        found = rows(connection, f"SELECT uuid FROM {IDENTITY}")  # noqa: S608 - our own name
    except MySQLError as error:
        if error_code(error) in _MISSING:
            return ""
        raise
    return str(found[0][0]) if found else ""


def write_identity(connection: Any) -> None:
    """Write a random identity, unless there is one."""
    values = (str(uuid.uuid4()),)
    with connection.cursor() as cursor:
        try:
            cursor.execute(_INSERT, values)
        except MySQLError as error:
            if error_code(error) not in _MISSING:
                raise
            create_internal_tables(connection, (IDENTITY,))
            cursor.execute(_INSERT, values)


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


def identity_grant(account: str) -> str:
    """The statement that lets an account read and write the identity of a shard's servers."""
    return f"GRANT {', '.join(WRITE_PRIVILEGES)} ON _shardstream.* TO {account};"


def _await(server: OpenServer) -> str:
    """Wait briefly for the row, which may come by replication."""
    deadline_s = time.monotonic() + _REPLICATED_S_MAX
    while True:
        found = _read(server)
        if found or time.monotonic() > deadline_s:
            return found
        time.sleep(_POLL_S)
