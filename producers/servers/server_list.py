"""A shard's servers: connected to in parallel, compared, and one chosen to follow."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from databases.connection import open_connection
from databases.server_facts import ServerFacts, ServerHistory, binlog_files, facts_of
from databases.sql import rows
from event_token import GtidSet, MariadbGtidSet
from event_token.errors import Rebuild, Retry, ShardstreamError
from producers.errors import Problem, refused
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.choice import (
    ServerView,
    asked_for,
    find_faults,
    has_caught_up,
    must_stop,
    none_usable,
)
from producers.servers.server_catalog import table_problems
from producers.servers.server_checks import CheckedServer, logs_cascades, stream_findings
from producers.settings import ServerSettings, ShardProducerSettings
from topics.names import ShardTopics
from topics.progress.record import LastTransaction


class UnlistedNumbers:
    """Remembers each domain's first transaction in the binlogs of one server."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int]] = {}

    def added_to(
        self, history: ServerHistory, server: ServerSettings, family: ServerFacts, connection: Any
    ) -> ServerHistory:
        """The history with `first`, and with `purged` extended up to before these numbers.

        For a domain that begins at n, `purged` says n - 2 by server 0, which does not exist: so
        positions from n - 1 on include it, whichever server wrote that. MySQL's history is
        returned unchanged.
        """
        executed, purged = history.executed, history.purged
        if not isinstance(executed, MariadbGtidSet) or not isinstance(purged, MariadbGtidSet):
            return history
        found = purged.by_domain()
        first: dict[int, tuple[int, int]] = {}
        for domain in executed.by_domain().keys() - found.keys():
            begin = self._first.get(domain) or _first_of(server, family, connection, domain)
            if begin is None:
                continue
            self._first[domain] = first[domain] = begin
            if begin[1] > 1:
                found[domain] = (0, begin[1] - 2)
        return replace(history, purged=MariadbGtidSet.of(found), first=first)


def _first_of(
    server: ServerSettings, family: ServerFacts, connection: Any, domain: int
) -> tuple[int, int] | None:
    """The server and number that a domain begins with in the binlogs, None if it is not there.

    It is in the last file whose GTID list lacks the domain.
    """
    with server_errors(server, "reading the beginnings of binlogs of"):
        names = binlog_files(connection)
        name = names[0]
        for later in names[1:]:
            before = family.before_file(connection, later)
            if isinstance(before, MariadbGtidSet) and domain in before.by_domain():
                break
            name = later
    with closing(ReplicationStream.open_file(server, family, name)) as stream:
        for transaction in transactions(stream, family.flavor, f"{name} of {server.name}"):
            if transaction.gtid[0] == domain:
                return transaction.gtid[1], transaction.gtid[2]
    return None


# A preferred server may take this long to reach what another one has: less than a lag that would
# justify leaving it, and short compared with a failover.
FRESH_WAIT_S: Final = 1.0
FRESH_POLL_S: Final = 0.05


@dataclass(slots=True)
class OpenServer:
    """A server that answered: a connection for queries, and what it reported last.

    `topics`: of the shard that it belongs to, for messages.
    """

    settings: ServerSettings
    topics: ShardTopics
    family: ServerFacts
    connection: Any
    view: ServerView | None = None
    _unlisted: UnlistedNumbers = field(default_factory=UnlistedNumbers)

    @property
    def name(self) -> str:
        """`host:port`."""
        return self.settings.name

    def own_name(self) -> str:
        """What the server at the other end of the connection calls itself."""
        with server_errors(self.settings, "asking for the identity of"):
            return self.family.own_name(self.connection)

    def is_replica(self) -> bool:
        """Whether it is one now."""
        with server_errors(self.settings, "asking for the role of"):
            return self.family.is_replica(self.connection)

    def history(self) -> ServerHistory:
        """What it has executed, and what of it no binlog of it has."""
        with server_errors(self.settings, "reading the executed set of"):
            found = self.family.history(self.connection)
        return self._unlisted.added_to(found, self.settings, self.family, self.connection)

    def open_stream(self, position: GtidSet, server_id: int, own: str = "") -> ReplicationStream:
        """The stream after a position; see ReplicationStream.open."""
        return ReplicationStream.open(
            self.settings, self.family, self._asked(position), server_id, own
        )

    def open_rest(self, position: GtidSet, own: str = "") -> ReplicationStream:
        """The same to the present end of the binlogs; see ReplicationStream.open_rest."""
        return ReplicationStream.open_rest(self.settings, self.family, self._asked(position), own)

    def _asked(self, position: GtidSet) -> GtidSet:
        """The position as the server is asked for it, by what its binlogs have now."""
        if not isinstance(position, MariadbGtidSet):
            return position
        # What was seen before may be older than the position.
        is_replica = self.is_replica() if self.view is None else self.view.is_replica
        return asked_for(position, self.look(is_replica=is_replica))

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
        own = self.own_name()
        self.view = ServerView(self.name, is_replica, own, self.history(), state)
        return self.view

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The server to follow, and one reason for each that is not."""

    server: OpenServer
    passed_over: list[str] = field(default_factory=list)


class ServerList:
    """The servers of a shard that answer; `close` closes their connections."""

    def __init__(
        self,
        topics: ShardTopics,
        servers: Sequence[OpenServer],
        faults: dict[str, ShardstreamError],
    ) -> None:
        """`faults`: why the others do not answer, by name."""
        self.topics = topics
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
        servers = [each for each in found if isinstance(each, OpenServer)]
        opened = cls(settings.shard_topics, servers, faults)
        if not any(server.settings.read for server in opened._servers):
            opened.close()
            raise none_usable(faults)
        return opened

    def choose(
        self, position: GtidSet | None, lasts: Sequence[LastTransaction] = ()
    ) -> ServerChoice:
        """Choose the server to follow from `position`; None for an empty log that starts anywhere.

        `lasts`: the log's last transactions. Raises ServerBehindLog or ServerDiverged when a
        primary contradicts the log or another primary, and the error of `none_usable` when no
        server can be followed.
        """
        views = self.look()
        faults = {**self._faults, **find_faults(self.topics, position, views, lasts)}
        stop = must_stop(views, faults)
        if stop is not None:
            raise stop
        usable = [s for s in self._servers if s.settings.read and s.name not in faults]
        if not usable:
            raise none_usable({n: f for n, f in faults.items() if n in self._readable()} or faults)
        passed_over = [str(fault) for fault in faults.values()]
        for server in usable:
            if len(usable) == 1 or _keeps_up(server, usable):
                return ServerChoice(server, passed_over)
            passed_over.append(f"{server.name} lags behind the others")
        return ServerChoice(usable[0], passed_over)

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
        """Read what the servers that answer report."""
        return read_views(self._servers, self._note_fault)

    def _note_fault(self, server: OpenServer, fault: ShardstreamError) -> None:
        if not isinstance(fault, Rebuild | Retry):
            raise fault
        self._faults[server.name] = fault

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()


def read_views(
    servers: Iterable[OpenServer], on_fault: Callable[[OpenServer, ShardstreamError], None]
) -> list[ServerView]:
    """Read what servers report; those that do not answer are passed to `on_fault`.

    Replicas first: what they have executed, their primary has when it is read.
    """
    roles: list[tuple[OpenServer, bool]] = []
    for server in servers:
        try:
            roles.append((server, server.is_replica()))
        except ShardstreamError as fault:
            on_fault(server, fault)
    views = []
    for server, is_replica in sorted(roles, key=lambda role: not role[1]):
        try:
            views.append(server.look(is_replica=is_replica))
        except ShardstreamError as fault:
            on_fault(server, fault)
    return views


def open_server(
    server: ServerSettings, settings: ShardProducerSettings, *, is_checked: bool = True
) -> OpenServer:
    """Connect to one server; ServerRefused if its settings do not allow streaming.

    With `is_checked` False they are not looked at: nothing is to be streamed from it.
    """
    family, connection = facts_of(settings.flavor), open_connection(server)
    opened = OpenServer(server, settings.shard_topics, family, connection)
    try:
        if server.read and is_checked:
            _check(opened, settings)
    except BaseException:
        opened.close()
        raise
    return opened


def _check(server: OpenServer, settings: ShardProducerSettings) -> None:
    with server_errors(server.settings, "checking the settings of"):
        checked = CheckedServer.ask(server.connection, server.settings, settings)
        problems = [each for each in stream_findings(checked) if isinstance(each, Problem)]
    with server_errors(server.settings, "checking the tables of"):
        problems += table_problems(server.connection, server.settings.name, settings)
    if problems:
        raise refused(problems)


def _keeps_up(server: OpenServer, usable: Sequence[OpenServer]) -> bool:
    """Whether it reaches soon what each of the others had when they were read."""
    wanted = [each.view.history.executed for each in usable if each.view is not None]
    deadline_s = time.monotonic() + FRESH_WAIT_S
    while True:
        executed = server.history().executed
        if all(has_caught_up(executed, each) for each in wanted):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(FRESH_POLL_S)
