"""Stops and reopens an application's writes on one server by locking its accounts.

Account locks replicate, so they survive a failover. Everything runs over one session that holds a
named lock on the server, the same for all reshards: a later command, also of another reshard, ends
that session first, so a command that was paused meanwhile can change nothing when it resumes.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pymysql

from databases.connection import (
    error_code,
    error_text,
    is_transient,
    rows_if_there,
    server_errors,
    write_row,
)
from databases.errors import ServerLost, ServerRefused, ServerSilent
from databases.grants import read_account
from databases.internal_tables import JOURNAL
from databases.sql import rows
from event_token import Flavor, GtidSet
from event_token.errors import Halt, UsageError
from resharding.errors import ShardNotListed
from resharding.progress import read_ended_by
from resharding.servers import (
    NEEDED_TO_SWITCH,
    ReshardServer,
    executed_set,
    is_account_locked,
    missing_grants,
    open_session,
    takes_writes,
)
from resharding.switch.decision import JournalRow
from topics.kafka.client import ClientConfig
from topics.progress.record import JournalKind

# A killed session rolls its transaction back first.
QUIET_S_MAX: Final = 30.0
QUIET_POLL_S: Final = 0.01
_CLAIM: Final = "shardstream.reshard"
# The accounts stay locked, so writes are stopped once, and again for sessions that were connecting.
STOPS_MAX: Final = 10
# The session that held the lock was killed; the server releases it when it notices.
CLAIM_S: Final = 10

_DUPLICATE: Final = 1062
# May turn out to be the application's.
_UNAUTHENTICATED: Final = "unauthenticated user"
_OWN: Final = "reshard_id = %s AND keyspace = %s"


class ShardWrites:
    """One server of a reshard, claimed by one command.

    `accounts`: all accounts that the application writes with, as user@host. Methods raise
    ServerLost when the server or the claim is lost: the command ends and can be run again.
    """

    def __init__(
        self, server: ReshardServer, keyspace: str, reshard_id: str, accounts: tuple[str, ...]
    ) -> None:
        """Claim the server; another command, of any reshard, that is running there ends."""
        self.server = server
        self._keyspace = keyspace
        self._reshard_id = reshard_id
        self._accounts = [_account(account) for account in accounts]
        if any(user == server.user for user, _ in self._accounts):
            raise UsageError(
                f"{server.name}: account {server.user} is used both by the reshard and by the "
                f"application: give the reshard a separate account"
            )
        # Sessions that were connecting when the accounts were first seen locked: these may have
        # passed the lock check before. Later ones cannot, however often an application retries.
        self._connecting: frozenset[int] | None = None
        self._stops = 0
        self._last_seen: dict[int, str] = {}
        self.connection: Any = open_session(server)
        try:
            self._check_grants()
            self.check_primary()
            self._claim()
        except BaseException:
            self.close()
            raise

    def _check_grants(self) -> None:
        needed = NEEDED_TO_SWITCH[self.server.flavor]
        with server_errors(self.server, "reading the grants of"):
            problems = missing_grants(self.connection, self.server.name, needed)
        if problems:
            raise UsageError(problems[0])

    def _claim(self) -> None:
        with server_errors(self.server, "claiming"):
            [(is_held,)] = rows(self.connection, "SELECT GET_LOCK(%s, 0)", (_CLAIM,))
            if is_held == 1:
                return
            [(holder,)] = rows(self.connection, "SELECT IS_USED_LOCK(%s)", (_CLAIM,))
            if holder is not None:
                self._kill(int(holder))
            [(is_held,)] = rows(self.connection, "SELECT GET_LOCK(%s, %s)", (_CLAIM, CLAIM_S))
        if is_held != 1:
            raise ServerLost(f"{self.server.name}: another command of a reshard is running")

    def close(self) -> None:
        """Release the claim."""
        if self.connection.open:
            self.connection._force_close()  # noqa: SLF001 - a lost server takes no goodbye

    def _kill(self, session: int) -> None:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(f"KILL {session}")
        except pymysql.err.MySQLError as error:
            if error_code(error) != 1094:  # it has ended by itself
                raise

    def is_locked(self) -> list[bool]:
        """Whether each account is locked. UsageError names one that does not exist."""
        with server_errors(self.server, "looking at the accounts of"):
            return [self._is_locked(*account) for account in self._accounts]

    def _is_locked(self, user: str, host: str) -> bool:
        try:
            return is_account_locked(self.connection, user, host)
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
            raise UsageError(
                f"{self.server.name}: there is no account {user}@{host}: create it, on a target "
                f"with ACCOUNT LOCK ({error_text(error)})"
            ) from error

    def obstacles(self) -> list[str]:
        """What would outlive the lock of the accounts or keep them from being locked."""
        problems = [problem] if (problem := self._prepared()) else []
        with server_errors(self.server, "looking at the accounts of"):
            problems += self._unlisted_accounts()
            if self.server.flavor is Flavor.MYSQL and not read_account(self.connection).has(
                "SYSTEM_USER"
            ):
                problems += self._system_users()
        return problems

    def _unlisted_accounts(self) -> list[str]:
        """Accounts of the application's users that would stay open, for connections of some hosts.

        MariaDB lists roles too, which have no host.
        """
        users = sorted({user for user, _ in self._accounts})
        marks = ", ".join(["%s"] * len(users))
        found = rows(
            self.connection,
            f"SELECT user, host FROM mysql.user WHERE host <> '' AND user IN ({marks})",
            users,
        )
        return [
            f"{self.server.name}: account {user}@{host} is not in `application_accounts`, so it "
            f"could go on writing after END: add it there, or lock it (ALTER USER "
            f"'{user}'@'{host}' ACCOUNT LOCK)"
            for user, host in sorted(set(found) - set(self._accounts))
            if not self._is_locked(user, host)
        ]

    def _system_users(self) -> list[str]:
        found = rows(
            self.connection,
            "SELECT user, host FROM mysql.global_grants WHERE priv = 'SYSTEM_USER'",
        )
        return [
            f"{self.server.name}: application account {user}@{host} has SYSTEM_USER, so only an "
            f"account that has it too can lock it: REVOKE SYSTEM_USER ON *.* FROM '{user}'@'{host}'"
            for user, host in sorted(set(found) & set(self._accounts))
        ]

    def _prepared(self) -> str:
        with server_errors(self.server, "looking for prepared transactions on"):
            count = len(rows(self.connection, "XA RECOVER"))
        if not count:
            return ""
        return (
            f"{self.server.name}: {count} prepared XA transaction(s) could still commit after END: "
            f"commit or roll them back (XA RECOVER lists them)"
        )

    def check_nothing_prepared(self) -> None:
        """Raise Halt if a prepared XA transaction could still commit though accounts are locked."""
        if problem := self._prepared():
            raise Halt(f"{problem}. Writes are stopped: then run switch again, or cancel")

    def is_quiet(self) -> bool:
        """Whether the application cannot write here now."""
        if not all(self.is_locked()):
            self._connecting = None
            return False
        return not self._sessions()

    def is_open(self) -> bool:
        """Whether all accounts may connect."""
        return not any(self.is_locked())

    def _sessions(self) -> dict[int, str]:
        """Sessions of the accounts, locked by now, that may still write; by id, whose and where."""
        users = {user for user, _ in self._accounts}
        with server_errors(self.server, "listing the sessions of"):
            found = rows(self.connection, "SHOW FULL PROCESSLIST")
        connecting = frozenset(int(row[0]) for row in found if row[1] == _UNAUTHENTICATED)
        if self._connecting is None:
            self._connecting = connecting
        late = connecting & self._connecting
        sessions = {
            int(row[0]): f"{row[1]} from {row[2]}"
            for row in found
            if row[1] in users or int(row[0]) in late
        }
        self._last_seen = sessions or self._last_seen
        return sessions

    def stop_writes(self) -> None:
        """Lock the accounts, end their sessions, wait until all have ended.

        Raises Halt, naming the sessions, when they do not end or new ones keep coming.
        """
        self._set_lock("LOCK")
        self._connecting = None
        self._stops += 1
        if self._stops > STOPS_MAX:
            raise self._never_quiet()
        deadline_s = time.monotonic() + QUIET_S_MAX
        while sessions := self._sessions():
            with server_errors(self.server, "ending sessions of"):
                for session in sessions:
                    self._kill(session)
            if time.monotonic() > deadline_s:
                raise self._never_quiet()
            time.sleep(QUIET_POLL_S)

    def _never_quiet(self) -> Halt:
        named = ", ".join(f"{session} ({who})" for session, who in self._last_seen.items())
        return Halt(
            f"{self.server.name}: the application's accounts are locked and its sessions were "
            f"ended, but there are sessions of its users: {named or 'none now'}. They take long to "
            f"end, or use an account that is not in `application_accounts` (SELECT user, host FROM "
            f"mysql.user lists it), or something unlocks the accounts. End what connects, and add "
            f"its account there or lock it. Writes are stopped: then run switch again, or cancel"
        )

    def open_writes(self) -> None:
        """Unlock the accounts."""
        self._set_lock("UNLOCK")

    def _set_lock(self, word: str) -> None:
        with server_errors(self.server, "changing the accounts of"):
            for user, host in self._accounts:
                with self.connection.cursor() as cursor:
                    cursor.execute(f"ALTER USER %s@%s ACCOUNT {word}", (user, host))

    def journal(self) -> JournalRow | None:
        """The reshard's row in this server's journal."""
        query = f"SELECT kind, hop_time_us FROM {JOURNAL} WHERE {_OWN}"
        with server_errors(self.server, "reading the journal of"):
            found = rows_if_there(self.connection, query, (self._reshard_id, self._keyspace))
        return JournalRow(JournalKind(found[0][0]), found[0][1]) if found else None

    def ended_by(self) -> frozenset[str]:
        """The reshards of the keyspace, this one or others, that have END here."""
        with server_errors(self.server, "reading the journal of"):
            return read_ended_by(self.connection, self._keyspace)

    def insert(self, row: JournalRow, shards: tuple[str, str]) -> None:
        """Insert the row unless there is one. `shards`: sources and targets as JSON lists."""
        with server_errors(self.server, "writing the journal of"):
            values = (self._reshard_id, row.kind.value, *shards, row.hop_time_us, self._keyspace)
            try:
                insert = f"INSERT INTO {JOURNAL} VALUES (%s, %s, %s, %s, %s, %s)"
                write_row(self.connection, JOURNAL, insert, values)
            except pymysql.err.MySQLError as error:
                if error_code(error) != _DUPLICATE:
                    raise

    def cancel_end(self) -> None:
        """Turn END into CANCELLED; any other row stays as it is."""
        with (
            server_errors(self.server, "writing the journal of"),
            self.connection.cursor() as cursor,
        ):
            cursor.execute(
                f"UPDATE {JOURNAL} SET kind = '{JournalKind.CANCELLED}' "
                f"WHERE {_OWN} AND kind = '{JournalKind.END}'",
                (self._reshard_id, self._keyspace),
            )

    def query(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a statement over the claimed session."""
        with server_errors(self.server, "asking"):
            return rows(self.connection, statement, values)

    def check_primary(self) -> None:
        """Raise ServerLost unless the server is still the primary of its shard.

        The account may write to a read-only server, so without this a mark could be lost there.
        """
        if not takes_writes(self.connection, self.server):
            raise ServerLost(
                f"{self.server.name} is a replica or read-only by now: run the command again, "
                f"which looks for the primary"
            )

    def executed(self) -> GtidSet:
        """All transactions that the server has executed by now."""
        with server_errors(self.server, "reading the executed set of"):
            return executed_set(self.connection, self.server.flavor)


def _account(text: str) -> tuple[str, str]:
    user, _, host = text.rpartition("@")
    if not user:
        raise UsageError(f"application account {text!r}: write user@host, for example shop@%")
    return user, host


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """A reshard to switch, cancel or complete. `server_of`: the primary of a shard.

    `accounts`: all accounts that the application writes with, as user@host. `force`: switch even
    if verify has not passed. `reason`: why, for the topology's records.
    """

    reshard_id: str
    keyspace: str
    server_of: Callable[[str], ReshardServer]
    accounts: tuple[str, ...]
    kafka: ClientConfig
    registry_url: str | None = None
    force: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """The result. `stopped_ms`: how long writes were stopped; None if an earlier run did it.

    `lost_sources`: those that did not answer when the targets were opened, each with what was
    found; their counters, and the triggers that no other source has, are not on the targets.
    """

    hop_time_us: int | None
    stopped_ms: int | None
    lost_sources: dict[str, str] = field(default_factory=dict)


class Claims:
    """Claims of the primaries of some shards; none is claimed later, so what is lost stays lost.

    `missing`: why a shard could not be claimed; `gone`: those of them without a server that
    answers, or that the settings do not have. `writes` has the others.
    """

    def __init__(self, settings: SwitchSettings, shards: Iterable[str]) -> None:
        """Claim what answers."""
        self.writes: dict[str, ShardWrites] = {}
        self.missing: dict[str, str] = {}
        self.gone: set[str] = set()
        try:
            for shard in shards:
                self._claim(settings, shard)
        except BaseException:
            self.close()
            raise

    def _claim(self, settings: SwitchSettings, shard: str) -> None:
        try:
            server = settings.server_of(shard)
            self.writes[shard] = ShardWrites(
                server, settings.keyspace, settings.reshard_id, settings.accounts
            )
        except (ServerLost, ServerRefused, UsageError) as error:
            self.missing[shard] = str(error)
            if isinstance(error, (ServerSilent, ShardNotListed)):
                self.gone.add(shard)

    def of(self, shards: Iterable[str]) -> list[ShardWrites]:
        """The claimed ones of some shards, by name."""
        return [self.writes[shard] for shard in sorted(shards) if shard in self.writes]

    def close(self) -> None:
        """Release the claims."""
        for writes in self.writes.values():
            writes.close()
