"""The transaction at the place in a binlog where a log read its last one."""

from contextlib import closing, suppress
from typing import Final

from event_token.errors import Halt
from producers.errors import BinlogPurged, StreamFailed
from producers.replication.gtid_scan import BinlogTransaction, transactions
from producers.replication.stream import ReplicationStream
from producers.servers.server_list import OpenServer
from topics.progress.record import LastTransaction

# What the server answers, or what is read, where a binlog has no event at a position.
_NO_EVENT_THERE: Final = (Halt, BinlogPurged, StreamFailed, IndexError, ValueError)


def at_its_place(server: OpenServer, last: LastTransaction) -> BinlogTransaction | None:
    """The transaction at the place where it was read, if this is the server it was read from."""
    if server.view is None or server.view.own != last.server:
        return None
    with suppress(*_NO_EVENT_THERE):
        stream = ReplicationStream.open_file(
            server.settings, server.family, last.binlog_file, last.binlog_pos
        )
        with closing(stream):
            where = f"{last.binlog_file} of {server.name}"
            found = next(transactions(stream, server.family.flavor, where), None)
        if found is not None and str(found) == last.gtid:
            return found
    return None
