"""The servers of a reshard: sessions with an account that may write, its privileges, primaries.

Which of a shard's servers is the primary is asked of the servers and not read from the settings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from databases.connection import open_connection, server_errors
from databases.errors import ServerLost, ServerRefused, ServerSilent
from databases.grants import read_account
from databases.server import DatabaseServer
from databases.server_facts import facts_of
from databases.session import check_session
from databases.sql import rows
from event_token import Flavor, GtidSet, parse_gtid_set
from event_token.errors import UsageError

# A statement that waits for a lock ends by the server's own limit (50 s by default) first.
ANSWER_TIMEOUT_S: Final = 120
# Servers print definitions and values as the session's sql_mode says: with ANSI_QUOTES or ORACLE in
# their settings a table of one could not be created on another, with PAD_CHAR_TO_FULL_LENGTH equal
# rows would differ.
SESSION_MODE: Final = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
# Limits that servers set against forgotten sessions and slow queries would end a claim that waits
# for a log, and a comparison of large tables.
_LIMITS: Final = {
    Flavor.MYSQL: "max_execution_time = 0",
    Flavor.MARIADB: "max_statement_time = 0, idle_transaction_timeout = 0, "
    "idle_readonly_transaction_timeout = 0, idle_write_transaction_timeout = 0",
}
_IDLE_S_MAX: Final = 8 * 3600  # the servers' own default


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardServer(DatabaseServer):
    """The primary of one shard, with the account that a reshard uses there."""

    shard: str
    flavor: Flavor

    @property
    def name(self) -> str:
        """How messages name the server."""
        return f"{self.host}:{self.port} (shard {self.shard})"


def open_session(server: ReshardServer, *, many_statements: bool = False) -> Any:
    """Open a connection as `databases.connection.open_connection` does, with patience for locks."""
    connection = open_connection(
        server, answer_timeout_s=ANSWER_TIMEOUT_S, many_statements=many_statements
    )
    try:
        with server_errors(server, "setting the session of"), connection.cursor() as cursor:
            cursor.execute(
                f"SET SESSION sql_mode = '{SESSION_MODE}', wait_timeout = {_IDLE_S_MAX}, "
                f"{_LIMITS[server.flavor]}"
            )
            check_session(connection, server.name, {"sql_mode": SESSION_MODE})
    except BaseException:
        connection.close()
        raise
    return connection


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


# On sources the product's own tables are written. Without SHOW VIEW, TRIGGER, EVENT and PROCESS a
# server shows less than there is, and says nothing.
NEEDED: Final = (
    *("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER"),
    *("CREATE TEMPORARY TABLES", "REFERENCES", "SHOW VIEW", "TRIGGER", "EVENT"),
)
_TO_SWITCH: Final = ("CREATE USER", "PROCESS")
NEEDED_TO_SWITCH: Final = {
    Flavor.MYSQL: (*NEEDED, *_TO_SWITCH, "CONNECTION_ADMIN", "XA_RECOVER_ADMIN"),
    Flavor.MARIADB: (*NEEDED, *_TO_SWITCH, "CONNECTION ADMIN"),
}


def missing_grants(connection: Any, where: str, needed: Sequence[str] = NEEDED) -> list[str]:
    """The privileges on everything that the account lacks, with the GRANT that adds them."""
    account = read_account(connection)
    missing = account.missing(needed)
    if not missing:
        return []
    names = ", ".join(missing)
    return [
        f"{where}: account {account.name} lacks {names}: GRANT {names} ON *.* TO {account.name};"
    ]


_STRINGS: Final = re.compile(r"'(?:[^'\\]|\\.|'')*'")
_LOCKED: Final = re.compile(r"\bACCOUNT LOCK\b")


def is_account_locked(connection: Any, user: str, host: str) -> bool:
    """Whether the account is locked; an error of PyMySQL if there is none."""
    [(statement,)] = rows(connection, "SHOW CREATE USER %s@%s", (user, host))
    return _LOCKED.search(_STRINGS.sub("''", str(statement))) is not None


def executed_set(connection: Any, flavor: Flavor) -> GtidSet:
    """All transactions that the server has executed by now."""
    return parse_gtid_set(facts_of(flavor).moment(connection).executed, flavor)
