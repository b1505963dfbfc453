"""What stops the decoder. Every message names the shard, the GTID and the binlog position."""

from event_token.errors import Halt, Rebuild


class DecoderHalt(Halt):
    """Raised when the stream cannot be turned into a true log; the base of this module's halts."""


class UnsupportedEvent(DecoderHalt):
    """Raised on an event type, or a use of one, that the decoder does not handle."""


class UnsupportedColumn(DecoderHalt):
    """Raised when a row arrives of a table with a column that the decoder does not handle."""


class WriteAfterEnd(DecoderHalt):
    """Raised on a row change of the keyspace after END of a reshard that was not cancelled."""


class CorruptBinlog(DecoderHalt):
    """Raised when bytes contradict their checksum, their lengths or each other."""


class NoKeyspaceId(DecoderHalt):
    """Raised when the vindex of a table cannot take its column, or the value in a row."""


class RecordTooLarge(DecoderHalt):
    """Raised on a change whose record Kafka does not take."""


class RuleBroken(DecoderHalt):
    """Raised when a filter rule does not fit a table version any more."""


class UnloggedCascade(DecoderHalt):
    """Raised on a foreign key whose changes of other rows the server does not log."""


class HiddenType(DecoderHalt):
    """Raised when a column may be, or is, of another type than the settings say it is."""


class StatementInRowStream(DecoderHalt):
    """Raised when a change was logged as a statement: its rows are in no binlog."""


class ServerError(Rebuild):
    """Raised on an error packet in place of an event; the server has ended this stream."""

    def __init__(self, code: int, message: str) -> None:
        """Keep the server's error number beside its text."""
        super().__init__(f"the server ended the stream with error {code}: {message}")
        self.code = code
        self.server_message = message


class StreamEnded(Rebuild):
    """Raised on an EOF packet: the server has no more to send on this connection."""


class QueueStayedFull(Rebuild):
    """Raised when Kafka's client has taken no record for as long as the limit allows."""
