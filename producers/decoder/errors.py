"""Errors that stop the decoder. Messages name shard, GTID and binlog position."""

from event_token.errors import Halt, Rebuild


class DecoderHalt(Halt):
    """Base of the halts here: the stream cannot be decoded into a correct log.

    `tables`: (database, table) of those because of which it stops; empty if unknown.
    """

    def __init__(self, message: str, tables: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.tables = tables


class UnsupportedEvent(DecoderHalt):
    """Raised on an event type, or a use of one, that the decoder does not handle."""


class UnsupportedColumn(DecoderHalt):
    """Raised when a row arrives of a table with a column that the decoder does not handle."""


class WriteAfterEnd(DecoderHalt):
    """Raised on a row of the keyspace after the END of a reshard that was not cancelled."""


class CorruptBinlog(DecoderHalt):
    """Raised when bytes contradict their checksum, their lengths or each other."""


class NoKeyspaceId(DecoderHalt):
    """Raised when the vindex of a table rejects its column, or the value in a row."""


class RecordTooLarge(DecoderHalt):
    """Raised on a change whose record is larger than Kafka accepts."""


class RuleBroken(DecoderHalt):
    """Raised when a filter rule no longer fits its table."""


class UnloggedCascade(DecoderHalt):
    """Raised on a foreign key that changes rows without logging them."""


class HiddenType(DecoderHalt):
    """Raised where a binlog hides what a column is, and neither settings nor server tell."""


class UnprovedTable(DecoderHalt):
    """Raised where rows have no names, and the server's catalog does not prove them."""


class StatementInRowStream(DecoderHalt):
    """Raised when a change was logged as a statement: its rows are in no binlog."""


class ServerError(Rebuild):
    """Raised on an error packet instead of an event; the server has ended the stream."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the server ended the stream with error {code}: {message}")
        self.code = code
        self.server_message = message


class RolledBack(Rebuild):
    """Raised when a transaction of MariaDB is rolled back after rows that were produced.

    Decode it again with its `gtid` in `DecoderOptions.rolled_back`.
    """

    def __init__(self, gtid: str) -> None:
        super().__init__(f"transaction {gtid} was rolled back: it is read again without its rows")
        self.gtid = gtid


class StreamEnded(Rebuild):
    """Raised on an EOF packet: the server has no more to send on this connection."""


class QueueStayedFull(Rebuild):
    """Raised when Kafka's client accepts no record for as long as the limit allows."""
