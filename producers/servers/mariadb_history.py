"""What a MariaDB server's binlogs lack that its own words do not tell.

A server that was made from a backup has a first binlog whose GTID list is empty, as that of a new
server, though its binlogs begin in the middle of a domain. Asked for an earlier position it sends
what it has, and says nothing of the hole.
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
    """Remembers each domain's first number in the binlogs of one server."""

    def __init__(self) -> None:
        """Begin without any."""
        self._first: dict[int, int] = {}

    def added_to(
        self, history: ServerHistory, server: ServerSettings, family: ServerFamily, connection: Any
    ) -> ServerHistory:
        """The history with `purged` reaching up to each domain's first number in the binlogs.

        For a domain that begins at n, `purged` says n - 2 by server 0, which nobody is: so it is
        included from n - 1 on, whoever wrote that. MySQL's history is given back as it is.
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
    """The first number of a domain in the binlogs: in the last file that does not list it."""
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
