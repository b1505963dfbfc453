"""A shard's servers: connected to in parallel, compared, and one chosen to follow."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Self

from databases.connection import open_connection
from databases.server_facts import ServerHistory
from databases.sql import rows
from event_token import GtidSet
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.errors import Problem, refused
from producers.filters.start_check import rule_problems
from producers.preflight.hidden_types import hidden_type_problems
from producers.preflight.server_checks import check_connection, logs_cascades
from producers.replication.family import ServerFamily, family_of
from producers.replication.stream import server_errors
from producers.servers.choice import ServerView, find_faults, must_stop, none_usable
from producers.servers.mariadb_history import UnlistedNumbers
from producers.settings import ServerSettings, ShardProducerSettings
from topics.names import ShardTopics

# A preferred server may take this long to reach what another one has: less than a lag that would
# justify leaving it, and short compared with a failover.
FRESH_WAIT_S: Final = 1.0
FRESH_POLL_S: Final = 0.05


@dataclass(slots=True)
class OpenServer:
    """A server that answered: its settings, a connection for queries, what it reported last."""

    settings: ServerSettings
    family: ServerFamily
    connection: Any
    view: ServerView | None = None
    _unlisted: UnlistedNumbers = field(default_factory=UnlistedNumbers)

    @property
    def name(self) -> str:
        """`host:port`."""
        return self.settings.name

    def is_replica(self) -> bool:
        """Whether it is one now."""
        with server_errors(self.settings, "asking for the role of"):
            return self.family.is_replica(self.connection)

    def history(self) -> ServerHistory:
        """Its executed and purged GTID sets."""
        with server_errors(self.settings, "reading the executed set of"):
            return self.family.history(self.connection)

    def logs_cascades(self) -> bool:
        """Whether its binlog has the rows that foreign keys change."""
        is_replica = self.is_replica()
        with server_errors(self.settings, "asking for the foreign keys of"):
            return logs_cascades(self.connection, is_replica=is_replica)

    def has_lower_case_names(self) -> bool:
        """Whether it takes names of tables in any case and has them in lower case."""
        with server_errors(self.settings, "asking for the settings of"):
            [(setting,)] = rows(self.connection, "SELECT @@GLOBAL.lower_case_table_names")
        return int(setting) != 0

    def look(self, *, is_replica: bool) -> ServerView:
        """Read what `find_faults` needs; the state first, so that the sets include it."""
        with server_errors(self.settings, "reading the executed set of"):
            state = self.family.binlog_state(self.connection)
            own = self.family.own_name(self.connection)
        history = self._unlisted.added_to(
            self.history(), self.settings, self.family, self.connection
        )
        self.view = ServerView(self.name, is_replica, own, history, state)
        return self.view

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Chosen:
    """The server to follow, and one reason for each that is not."""

    server: OpenServer
    passed_over: list[str] = field(default_factory=list)


class ServerList:
    """The servers of a shard that answer; `close` closes their connections."""

    def __init__(self, servers: Sequence[OpenServer], faults: dict[str, ShardstreamError]) -> None:
        """`faults`: why the others do not answer, by name."""
        self._servers = list(servers)
        self._faults = faults

    @classmethod
    def open(cls, settings: ShardProducerSettings) -> Self:
        """Connect to all servers and check their settings and grants.

        If none that may be read from can be followed, raises ServerLost where that may pass and
        ServerRefused where not.
        """

        def reach(server: ServerSettings) -> OpenServer | ShardstreamError:
            try:
                return open_server(server, settings)
            except ShardstreamError as fault:
                return fault

        with ThreadPoolExecutor(len(settings.servers)) as threads:
            found = list(threads.map(reach, settings.servers))
        named = zip(settings.servers, found, strict=True)
        faults = {s.name: each for s, each in named if isinstance(each, ShardstreamError)}
        opened = cls([each for each in found if isinstance(each, OpenServer)], faults)
        if not any(server.settings.read for server in opened._servers):
            opened.close()
            raise none_usable(faults)
        return opened

    def choose(self, topics: ShardTopics, position: GtidSet | None) -> Chosen:
        """Choose the server to follow from `position`; None for an empty log that starts anywhere.

        Raises ServerBehindLog or ServerDiverged when a primary contradicts the log or another
        primary, and the error of `none_usable` when no server can be followed.
        """
        views = self.look()
        faults = {**self._faults, **find_faults(topics, position, views)}
        stop = must_stop(views, faults)
        if stop is not None:
            raise stop
        usable = [s for s in self._servers if s.settings.read and s.name not in faults]
        if not usable:
            raise none_usable({n: f for n, f in faults.items() if n in self._readable()} or faults)
        passed_over = [str(fault) for fault in faults.values()]
        for server in usable:
            if len(usable) == 1 or _keeps_up(server, usable):
                return Chosen(server, passed_over)
            passed_over.append(f"{server.name} lags behind the others")
        return Chosen(usable[0], passed_over)

    def primary(self) -> OpenServer | None:
        """The first server that is no replica, as far as is known since `choose`."""
        for server in self._servers:
            if server.view is not None and not server.view.is_replica:
                return server
        return None

    def named(self, name: str) -> OpenServer:
        """The server of this name, which has answered."""
        return next(server for server in self._servers if server.name == name)

    def _readable(self) -> set[str]:
        return {s.name for s in self._servers if s.settings.read} | self._faults.keys()

    def look(self) -> list[ServerView]:
        """Read what the servers that answer report.

        Replicas first: what they have executed, their primary has when it is read.
        """
        parts: list[tuple[OpenServer, bool]] = []
        for server in self._servers:
            try:
                parts.append((server, server.is_replica()))
            except (Rebuild, Retry) as fault:
                self._faults[server.name] = fault
        views = []
        for server, is_replica in sorted(parts, key=lambda part: not part[1]):
            try:
                views.append(server.look(is_replica=is_replica))
            except (Rebuild, Retry) as fault:
                self._faults[server.name] = fault
        return views

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()


def open_server(server: ServerSettings, settings: ShardProducerSettings) -> OpenServer:
    """Connect to one server; ServerRefused if its settings do not allow streaming."""
    opened = OpenServer(server, family_of(settings.flavor), open_connection(server))
    try:
        if server.read:
            _check(opened, settings)
    except BaseException:
        opened.close()
        raise
    return opened


def _check(server: OpenServer, settings: ShardProducerSettings) -> None:
    problems = check_connection(
        server.connection,
        server.settings,
        settings.flavor,
        accept_unlogged_cascades=settings.accept_unlogged_cascades,
        accept_loss_at_server_crash=settings.accept_loss_at_server_crash,
    )
    with server_errors(server.settings, "checking the tables of"):
        problems += table_problems(server.connection, server.settings.name, settings)
    if problems:
        raise refused(problems)


def table_problems(
    connection: Any, server_name: str, settings: ShardProducerSettings
) -> list[Problem]:
    """Filter rules and column types of the settings that do not fit the server's tables."""
    return [
        *rule_problems(connection, server_name, settings, at_start=True),
        *hidden_type_problems(connection, server_name, settings),
    ]


def _keeps_up(server: OpenServer, usable: Sequence[OpenServer]) -> bool:
    """Whether it reaches soon what each of the others had when they were read."""
    wanted = [each.view.history.executed for each in usable if each.view is not None]
    deadline_s = time.monotonic() + FRESH_WAIT_S
    while True:
        executed = server.history().executed
        if all(executed.reaches(each) for each in wanted):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(FRESH_POLL_S)
