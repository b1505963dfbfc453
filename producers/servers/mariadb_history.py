"""Transactions that are missing from a MariaDB server's binlogs without the server saying so.

The first binlog of a server restored from a backup has an empty GTID list, like that of a new
server, although its binlogs begin in the middle of a domain. Asked for an earlier position, the
server sends what it has and does not mention the gap.
"""

from contextlib import closing
from typing import Any

from databases.server_facts import ServerHistory
from databases.sql import rows
from event_token import MariadbGtidSet
from producers.replication.family import ServerFamily
from producers.replication.gtid_scan import transactions
from producers.replication.stream import ReplicationStream, server_errors
from producers.settings import ServerSettings


class UnlistedNumbers:
    """Remembers each domain's first sequence number in the binlogs of one server."""

    def __init__(self) -> None:
        """Start with no domain."""
        self._first: dict[int, int] = {}

    def added_to(
        self, history: ServerHistory, server: ServerSettings, family: ServerFamily, connection: Any
    ) -> ServerHistory:
        """The history with `purged` extended up to each domain's first number in the binlogs.

        For a domain that begins at n, `purged` says n - 2 by server 0, which does not exist: so
        positions from n - 1 on include it, whichever server wrote that. MySQL's history is
        returned unchanged.
        """
        executed, purged = history.executed, history.purged
        if not isinstance(executed, MariadbGtidSet) or not isinstance(purged, MariadbGtidSet):
            return history
        found = purged.by_domain()
        for domain in executed.by_domain().keys() - found.keys():
            if domain not in self._first:
                self._first[domain] = _first_number(server, family, connection, domain)
            if self._first[domain] > 2:
                found[domain] = (0, self._first[domain] - 2)
        return ServerHistory(executed, MariadbGtidSet.of(found))


def _first_number(
    server: ServerSettings, family: ServerFamily, connection: Any, domain: int
) -> int:
    """The first number of a domain: it is in the last file whose GTID list lacks the domain."""
    with server_errors(server, "reading the beginnings of binlogs of"):
        names = [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]
        name = names[0]
        for later in names[1:]:
            before = family.before_file(connection, later)
            if isinstance(before, MariadbGtidSet) and domain in before.by_domain():
                break
            name = later
    with closing(ReplicationStream.open_file(server, family, name)) as stream:
        for transaction in transactions(stream, family.flavor, f"{name} of {server.name}"):
            if transaction.gtid[0] == domain:
                return transaction.gtid[2]
    return 0
