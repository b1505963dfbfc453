"""What a server's own binlogs say of transactions that a log holds: the same one, or another.

A server that lost the end of its binlog in a crash, or was restored from a backup, gives the GTIDs
of the lost transactions to others. By commit times they are told apart.
"""

from contextlib import closing

from databases.sql import rows
from event_token import GtidSet, MysqlGtidSet, parse_gtid_set
from event_token.mariadb_gtid import parse_mariadb_gtid
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.servers.choice import ServerView, is_known, is_purged
from producers.servers.server_list import OpenServer
from producers.skip.gtid_sources import sources_of


class ServerCommits:
    """The transactions of one server. Its binlogs are read as far back as they are asked for."""

    def __init__(self, server: OpenServer, view: ServerView) -> None:
        """`view`: what the server has just reported."""
        self._server = server
        self._view = view
        self._commits_us: dict[str, int] = {}
        self._unread: list[str] | None = None

    @property
    def sources(self) -> set[str]:
        """The sources of all that it has executed."""
        history = self._view.history
        return sources_of(history.executed) | sources_of(history.purged)

    def has_executed(self, gtid: str) -> bool:
        """Whether the server has a transaction of this GTID."""
        executed = self._view.history.executed
        if isinstance(executed, MysqlGtidSet):
            return executed.contains_gtid(gtid)
        domain, server, number = parse_mariadb_gtid(gtid)
        if not is_known(self._view, domain, server, number):
            return False
        if is_purged(self._view, domain, number) or executed.contains_gtid(gtid):
            return True
        return self._commit_us(gtid) is not None

    def differs(self, gtid: str, commit_us: int) -> bool:
        """Whether the server has another transaction under this GTID; False where it is purged."""
        if not self.has_executed(gtid):
            return False
        found = self._commit_us(gtid)
        return found is not None and found != commit_us

    def _commit_us(self, gtid: str) -> int | None:
        while gtid not in self._commits_us:
            name = self._next_file()
            if name is None:
                return None
            self._read(name)
            before = self._before(name)
            if before is None or not before.reaches(parse_gtid_set(gtid, before.flavor)):
                break  # it would be in this file
        return self._commits_us.get(gtid)

    def _next_file(self) -> str | None:
        if self._unread is None:
            with server_errors(self._server.settings, "listing the binlogs of"):
                found = rows(self._server.connection, "SHOW BINARY LOGS")
            self._unread = [str(row[0]) for row in found]
        return self._unread.pop() if self._unread else None

    def _before(self, name: str) -> GtidSet | None:
        server = self._server
        with server_errors(server.settings, "reading the binlogs of"):
            return server.family.before_file(server.connection, name)

    def _read(self, name: str) -> None:
        """Add the transactions from the beginning of a file to the first that is known."""
        server = self._server
        found: dict[str, int] = {}
        with closing(ReplicationStream.open_file(server.settings, server.family, name)) as stream:
            where = f"{name} of {server.name}"
            for transaction in transactions(stream, server.family.flavor, where):
                if str(transaction) in self._commits_us:
                    break
                found[str(transaction)] = transaction.commit_us
        self._commits_us |= found
