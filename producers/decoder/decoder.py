"""Decodes the replication stream, as it comes from the socket, into records for Kafka's client."""

import zlib
from typing import Final

from mypy_extensions import i64

from event_token import Flavor, GtidError, GtidSet, UsageError, parse_gtid_set
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    ServerError,
    StreamEnded,
    UnsupportedEvent,
)
from producers.decoder.events.event_types import TRANSACTION_PAYLOAD
from producers.decoder.events.payload import PacketedTransaction
from producers.decoder.options import BatchSummary, DecoderOptions
from producers.decoder.rows.record_writer import RecordOutput, RecordWriter, TransactionStamp
from producers.decoder.stream.copy_writer import CopyWriter
from producers.decoder.stream.event_reader import EventReader
from producers.decoder.stream.internal_tables import InternalTables
from producers.decoder.stream.table_versions import TableVersions
from producers.decoder.stream.transaction import RunningPosition, StreamClock, Transaction
from producers.decoder.tables.plan import TransactionEnds
from producers.decoder.values.wire import read_u16, read_u24

_PACKET_HEADER_BYTES: Final = 4
# A packet of this length is continued by the next one.
_PACKET_FULL: Final = 0xFFFFFF
# The servers' largest max_allowed_packet and some room for headers: no event is longer.
EVENT_BYTES_MAX: Final = 1024 * 1024 * 1024 + 64 * 1024
_OK: Final = 0
_EOF_BYTES_MAX: Final = 8


class Decoder:
    """Decodes one shard's stream.

    An error ends the decoder: make a new one that continues from what is committed. `feed` raises
    CorruptBinlog, UnsupportedEvent, UnsupportedColumn, RecordTooLarge, StatementInRowStream,
    UnloggedCascade (all Halt), ServerError, StreamEnded, RolledBack and QueueStayedFull (Rebuild),
    and what the callbacks raise.
    """

    def __init__(self, options: DecoderOptions) -> None:
        """Begin after `options.position`."""
        self._shard: str = options.shard
        self._flavor: Flavor = options.flavor
        self._output: RecordOutput = RecordOutput(
            options.topic, options.produce, options.on_full, options.on_delivery
        )
        self._stamp: TransactionStamp = TransactionStamp(options.shard, options.last_cell_us)
        self._record: RecordWriter = RecordWriter(
            self._output,
            self._stamp,
            options.next_seq,
            options.record_bytes_max,
            options.message_bytes_max,
        )
        self._clock: StreamClock = StreamClock(
            options.last_timestamp_us,
            options.max_clock_ahead_us,
            options.now_us,
            options.on_notice,
        )
        self._position: RunningPosition = RunningPosition(
            parse_gtid_set(options.position, options.flavor)
        )
        self._internal: InternalTables = InternalTables(
            options.keyspace,
            options.shard,
            list(options.ended_by),
            options.is_sharded,
            options.is_cancelled,
        )
        self._transaction: Transaction = Transaction(
            self._position, self._record, self._clock, self._internal, TransactionEnds()
        )
        self._events: EventReader = EventReader(
            self._transaction,
            TableVersions(options, self._position.to_set),
            verify_checksum=options.verify_checksum,
            refuses_cascades=options.refuses_cascades,
            statement_checks=options.statement_checks,
            rolled_back=options.rolled_back,
        )
        self._batch_first_seq: int = options.next_seq
        self._parts: list[bytes] = []  # of an event that is longer than a packet
        self._parts_bytes: i64 = 0
        self._packeted: PacketedTransaction | None = None
        self._is_spent: bool = False

    @property
    def copy_writer(self) -> CopyWriter:
        """Writes copied rows into the stream, while `in_transaction` is False."""
        return CopyWriter(self._events)

    @property
    def messages(self) -> int:
        """Records produced since the last `take_batch`."""
        return self._output.messages

    @property
    def bytes_produced(self) -> int:
        """Bytes of the keys and values of those records."""
        return self._output.bytes_produced

    @property
    def transactions(self) -> int:
        """Transactions that ended since the last `take_batch`."""
        return self._transaction.count

    @property
    def in_transaction(self) -> bool:
        """Whether the stream is inside a transaction, where nothing can be committed."""
        return self._transaction.is_open or self._packeted is not None

    @property
    def has_mark(self) -> bool:
        """Whether a mark of a reshard is complete: `feed` takes nothing until `take_batch`."""
        return self._internal.mark is not None and not self.in_transaction

    @property
    def ended_by(self) -> list[str]:
        """The reshards whose END has come, and not their CANCELLED."""
        return self._internal.ended_by

    @property
    def head_us(self) -> int:
        """The `head_us` of the next batch if it is taken now."""
        return self._clock.head_us

    @property
    def heartbeat_us(self) -> int:
        """The newest time in this shard's rows of `_shardstream.heartbeat`, 0 before the first.

        Inside a transaction it may be that transaction's own.
        """
        return self._internal.heartbeat_us

    @property
    def gtid(self) -> str:
        """GTID of the transaction under way, or else of the last one; "" before the first."""
        return self._position.gtid()

    @property
    def binlog_file(self) -> str:
        """The binlog file that is read, "" before the first ROTATE."""
        return self._transaction.binlog_file

    def feed(
        self, buffer: bytes | bytearray | memoryview, start: int, end: int, commit_rows: int
    ) -> int:
        """Take whole packets from buffer[start:end]; return where the first untaken one begins.

        Stops before an incomplete packet, and at the end of a transaction once `messages` has
        reached `commit_rows` or the transaction is a mark.
        """
        if self._is_spent:
            raise UsageError("this decoder has stopped on an error: make a new one")
        if self.has_mark or not _has_packet(buffer, start, end):
            return start
        chunk = bytes(memoryview(buffer)[start:end])
        try:
            return start + self._packets(chunk, commit_rows)
        except DecoderHalt as error:
            self._is_spent = True
            raise type(error)(f"{self._where()}: {error}", error.tables) from error
        except (IndexError, ValueError, KeyError, OverflowError, GtidError, zlib.error) as error:
            self._is_spent = True
            raise CorruptBinlog(f"{self._where()}: {error}") from error
        except BaseException:
            self._is_spent = True
            raise

    def close(self) -> None:
        """Drop the reference so that a retained decoder cannot keep the Kafka client alive."""
        self._is_spent = True
        self._output.close()

    def take_batch(self) -> BatchSummary:
        """Produce the held record, and summarize what was produced since the last call.

        Raises QueueStayedFull, and what the callbacks raise.
        """
        if self.in_transaction:
            raise UsageError("a batch can be taken only between transactions")
        transaction = self._transaction
        self._output.produce_rest()
        next_seq = self._record.next_seq
        summary = BatchSummary(
            first_seq=self._batch_first_seq,
            last_seq=next_seq - 1,
            position=self._position.text(),
            gtid=self._position.gtid(),
            head_us=self._clock.head_us,
            ticks=self._stamp.ticks,
            last_commit_us=transaction.committed_us,
            binlog_file=transaction.committed_file,
            binlog_pos=transaction.committed_pos,
            transactions=transaction.count,
            left=tuple((gtid, *at) for gtid, at in transaction.left.items()),
            mark=self._internal.mark,
            ddl=transaction.ddl,
            rows_filtered=int(self._events.filtered_rows.left_out),
            statements_passed=int(transaction.statements_passed),
            statement_table=transaction.statement_table,
            prepared_us=self._events.xa.prepared_us(),
            in_parts=tuple(self._output.in_parts),
        )
        self._output.begin_batch()
        self._stamp.ticks = []
        transaction.count = 0
        transaction.left = {}
        transaction.statements_passed = 0
        transaction.ddl = None
        self._events.filtered_rows.left_out = 0
        self._internal.mark = None
        self._batch_first_seq = next_seq
        return summary

    def advance_head(self, head_us: int) -> None:
        """Respect a head (watermark) that a heartbeat promised: no later record is older."""
        if self.in_transaction:
            raise UsageError("a head can be promised only between transactions")
        self._clock.advance(head_us)

    def reached(self, executed_set_text: str) -> bool:
        """Tell whether everything of a GTID set was read; False inside a transaction."""
        wanted = parse_gtid_set(executed_set_text, self._flavor)
        return not self.in_transaction and self._read().includes(wanted)

    def is_past(self, gtid_set: GtidSet) -> bool:
        """Tell the same of a set of this history: MariaDB's by its numbers, whoever wrote them."""
        return not self.in_transaction and self._read().reaches(gtid_set)

    def _read(self) -> GtidSet:
        """Return what was read, with the prepared XA transactions."""
        read: GtidSet = self._position.to_set()
        for gtid in self._events.xa.gtids():
            read = read.union(parse_gtid_set(gtid, self._flavor))
        return read

    def _where(self) -> str:
        """Return the place for messages."""
        transaction = self._transaction
        gtid = self._position.gtid() or "none yet"
        inside = "in" if transaction.is_open else "after"
        place = f"{transaction.binlog_file or 'no binlog file yet'}:{transaction.binlog_pos}"
        return f"shard {self._shard}, {inside} transaction {gtid}, binlog {place}"

    def _packets(self, chunk: bytes, commit_rows: i64) -> int:
        """Take the whole packets of `chunk`; return how many bytes they have."""
        output = self._output
        events = self._events
        internal = self._internal
        transaction = self._transaction
        pos: i64 = 0
        size: i64 = len(chunk)
        while pos + _PACKET_HEADER_BYTES <= size:
            length = read_u24(chunk, pos)
            begin: i64 = pos + _PACKET_HEADER_BYTES
            stop: i64 = begin + length
            if stop > size:
                break
            if length == _PACKET_FULL or self._parts_bytes:
                self._part(chunk[begin:stop])
            elif length and i64(chunk[begin]) == _OK:
                events.event(chunk, begin + 1, stop)
            else:
                _no_event(chunk[begin:stop])
            pos = stop
            if (
                (output.messages >= commit_rows or internal.mark is not None)
                and not transaction.is_open
                and not self._parts_bytes
            ):
                break
        return pos

    def _part(self, part: bytes) -> None:
        """Keep a packet of an event that continues in the next; take the event when it is whole.

        A compressed transaction is not kept: its packets are taken as they come.
        """
        is_first = self._parts_bytes == 0
        self._parts_bytes += len(part)
        if self._parts_bytes > EVENT_BYTES_MAX:
            raise UnsupportedEvent(f"an event of more than {EVENT_BYTES_MAX} bytes")
        packeted = self._packeted
        if packeted is not None:
            packeted.add(part)
        elif is_first and part[0] == _OK and part[5] == TRANSACTION_PAYLOAD:
            packeted = self._packeted = self._events.packeted(part, 1)
        else:
            self._parts.append(part)
        if len(part) == _PACKET_FULL:
            return
        self._parts_bytes = 0
        if packeted is not None:
            self._packeted = None
            packeted.end()
            return
        whole = b"".join(self._parts)
        self._parts = []
        if whole[0] != _OK:
            _no_event(whole)
        self._events.event(whole, 1, len(whole))


def _has_packet(buffer: bytes | bytearray | memoryview, start: int, end: int) -> bool:
    """Tell whether the buffer has a whole packet, before anything is copied."""
    if end - start < _PACKET_HEADER_BYTES:
        return False
    length: int = buffer[start] | buffer[start + 1] << 8 | buffer[start + 2] << 16
    return start + _PACKET_HEADER_BYTES + length <= end


def _no_event(packet: bytes) -> None:
    """Raise the error that a packet without an event stands for."""
    if packet[:1] == b"\xff":
        code = read_u16(packet, 1)
        text = packet[3:].decode("utf-8", "replace")
        if text.startswith("#"):
            text = text[6:]  # the SQL state
        raise ServerError(code, text)
    if packet[:1] == b"\xfe" and len(packet) <= _EOF_BYTES_MAX:
        raise StreamEnded("the server has ended the stream")
    raise CorruptBinlog(
        f"a packet of {len(packet)} bytes begins with {packet[:1].hex() or 'nothing'}"
    )
