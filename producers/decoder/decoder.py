"""The replication stream as it comes from the socket, to records handed to Kafka's client."""

import zlib
from collections.abc import Callable, Mapping
from typing import Final

from mypy_extensions import i64

from event_token import Flavor, GtidError, MariadbGtidSet, MysqlGtidSet, UsageError, parse_gtid_set
from producers.decoder.batch import BatchSummary
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    ServerError,
    StreamEnded,
    UnsupportedEvent,
)
from producers.decoder.events.event_stream import EventReader
from producers.decoder.events.event_types import TRANSACTION_PAYLOAD
from producers.decoder.events.internal_tables import InternalTables
from producers.decoder.events.payload import PacketedTransaction
from producers.decoder.events.stream_clock import StreamClock
from producers.decoder.rows.copied_rows import CopyWriter
from producers.decoder.rows.filtered_rows import FilterRules
from producers.decoder.rows.record_sink import Produce, RecordSink, closed
from producers.decoder.tables.sharding import ShardingColumn
from producers.decoder.tables.table_versions import Tables
from producers.decoder.values.hidden_values import HiddenTypes
from producers.decoder.values.wire import read_u16, read_u24

_PACKET_HEADER_BYTES: Final = 4
# A packet of this length is followed by one that goes on with it.
_PACKET_FULL: Final = 0xFFFFFF
# The servers' largest max_allowed_packet and some room for headers: no event is longer.
EVENT_BYTES_MAX: Final = 1024 * 1024 * 1024 + 64 * 1024
_OK: Final = 0
_EOF: Final = 254
_ERROR: Final = 255
_EOF_BYTES_MAX: Final = 8


class Decoder:
    """Decodes one shard's stream.

    `next_seq`: of the first record. `last_timestamp_us`: no record will be older; the later
    of the last record's time and the last head promised. `last_cell_us`: start of the grid
    cell of the log's last record, -1 for none. `produce(topic, value, key, 0, None,
    on_delivery, timestamp_ms)` raises BufferError when its queue is full; then `on_full` is
    called and produce again. `record_bytes_max`: of key and value. `vindexes`: how rows get
    keyspace ids. `text_as_bytes`: columns whose text is logged raw. `ended_by`: reshards that
    have ENDed. `rules`: what is wanted. `hidden_types`: of MariaDB's columns; None: all are BINARY.

    Errors end the decoder: make a new one from what is committed. `feed` raises CorruptBinlog,
    UnsupportedEvent, UnsupportedColumn, RecordTooLarge, StatementInRowStream, UnloggedCascade (all
    Halt), ServerError, StreamEnded and QueueStayedFull (Rebuild), and what the callbacks raise.
    """

    def __init__(
        self,
        *,
        topic: str,
        shard: str,
        flavor: str,
        position: str,
        next_seq: int,
        last_timestamp_us: int,
        last_cell_us: int,
        produce: Produce,
        record_bytes_max: int,
        on_full: Callable[[], None],
        schema_id: Callable[[str], int],
        verify_checksum: bool = True,
        max_clock_ahead_us: int,
        now_us: Callable[[], int],
        on_notice: Callable[[str], None],
        vindexes: Mapping[tuple[str, str], ShardingColumn] | None = None,
        text_as_bytes: frozenset[str] = frozenset(),
        ended_by: tuple[str, ...] = (),
        rules: FilterRules | None = None,
        hidden_types: HiddenTypes | None = None,
    ) -> None:
        """Begin behind `position`, the GTID set that the log holds already."""
        self._shard: str = shard
        self._flavor: Flavor = Flavor(flavor)
        start = parse_gtid_set(position, self._flavor)
        self._sink: RecordSink = RecordSink(topic, shard, next_seq, last_cell_us, produce)
        self._sink.record_bytes_max = record_bytes_max
        self._sink.on_full = on_full
        self._events: EventReader = EventReader(
            self._sink,
            Tables(schema_id, vindexes or {}, flavor == Flavor.MARIADB.value, text_as_bytes, rules),
            StreamClock(last_timestamp_us, max_clock_ahead_us, now_us, on_notice),
            start if isinstance(start, MysqlGtidSet) else None,
            start if isinstance(start, MariadbGtidSet) else None,
        )
        self._events.verify_checksum = verify_checksum
        self._events.tables.hidden_types = hidden_types
        self._events.internal = InternalTables(shard, list(ended_by))
        self._batch_first_seq: int = next_seq
        self._parts: list[bytes] = []  # of an event that is longer than a packet
        self._parts_bytes: i64 = 0
        self._packeted: PacketedTransaction | None = None
        self._is_spent: bool = False

    @property
    def copy_writer(self) -> CopyWriter:
        """By it copied rows join the stream, while `in_transaction` is False."""
        return CopyWriter(self._events)

    @property
    def messages(self) -> int:
        """Records produced since the last `take_batch`."""
        return self._sink.messages

    @property
    def bytes_produced(self) -> int:
        """Bytes of their keys and values."""
        return self._sink.bytes_produced

    @property
    def in_transaction(self) -> bool:
        """Inside a MySQL transaction: no Kafka commit now."""
        return self._events.is_open or self._packeted is not None

    @property
    def has_mark(self) -> bool:
        """A mark of a reshard is complete: commit now, nothing is taken until `take_batch`."""
        return self._events.internal.mark is not None and not self.in_transaction

    @property
    def head_us(self) -> int:
        """What the next batch's `head_us` will be, if it is taken now."""
        return self._events.clock.head_us

    @property
    def heartbeat_us(self) -> int:
        """The newest time in this shard's rows of `_shardstream.heartbeat`, 0 before the first.

        Inside a transaction it may be that transaction's own.
        """
        return self._events.internal.heartbeat_us

    @property
    def gtid(self) -> str:
        """The transaction under way, or else the last one; "" before the first."""
        return self._events.gtid()

    @property
    def binlog_file(self) -> str:
        """The binlog file that is being read, "" before the first ROTATE."""
        return self._events.binlog_file

    def set_delivery_callback(self, callback: object) -> None:
        """Pass it as on_delivery of a batch's first and last record."""
        self._sink.delivery_callback = callback

    def refuse_cascades(self) -> None:
        """Stop at a foreign key that changes rows by itself: the server does not log those."""
        self._events.tables.refuses_cascades = True

    def feed(
        self, buffer: bytes | bytearray | memoryview, start: int, end: int, commit_rows: int
    ) -> int:
        """Take whole packets from buffer[start:end]; return where the first one not taken begins.

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
            raise type(error)(f"{self._where()}: {error}") from error
        except (IndexError, ValueError, KeyError, OverflowError, GtidError, zlib.error) as error:
            self._is_spent = True
            raise CorruptBinlog(f"{self._where()}: {error}") from error
        except BaseException:
            self._is_spent = True
            raise

    def close(self) -> None:
        """Let go of `produce`: who holds the decoder does not hold Kafka's client by it."""
        self._is_spent = True
        self._sink.produce = closed

    def take_batch(self) -> BatchSummary:
        """Produce what was held back, say what was produced since the last call, count from there.

        Raises QueueStayedFull, and what the callbacks raise.
        """
        if self.in_transaction:
            raise UsageError("a batch can be taken only between transactions")
        events = self._events
        sink = self._sink
        sink.produce_rest()
        summary = BatchSummary(
            first_seq=self._batch_first_seq,
            last_seq=sink.next_seq - 1,
            position=events.position(),
            head_us=events.clock.head_us,
            ticks=sink.ticks,
            last_commit_us=events.committed_us,
            binlog_file=events.committed_file,
            binlog_pos=events.committed_pos,
            transactions=events.transactions,
            mark=events.internal.mark,
        )
        sink.begin_batch()
        events.transactions = 0
        events.internal.mark = None
        self._batch_first_seq = sink.next_seq
        return summary

    def advance_head(self, head_us: int) -> None:
        """A heartbeat has promised this head: no later record will be older."""
        if self.in_transaction:
            raise UsageError("a head can be promised only between transactions")
        self._events.clock.advance(head_us)

    def reached(self, executed_set_text: str) -> bool:
        """Tell whether all of that set is in the log or on its way there; False inside one."""
        if self.in_transaction:
            return False
        executed = parse_gtid_set(executed_set_text, self._flavor)
        return self._events.reached_set().includes(executed)

    def _where(self) -> str:
        """The place for messages."""
        events = self._events
        gtid = events.gtid() or "none yet"
        inside = "in" if events.is_open else "after"
        place = f"{events.binlog_file or 'no binlog file yet'}:{events.binlog_pos}"
        return f"shard {self._shard}, {inside} transaction {gtid}, binlog {place}"

    def _packets(self, chunk: bytes, commit_rows: i64) -> int:
        """Take the whole packets of `chunk`; return how many bytes they have."""
        sink = self._sink
        events = self._events
        internal = events.internal
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
                (sink.messages >= commit_rows or internal.mark is not None)
                and not events.is_open
                and not self._parts_bytes
            ):
                break
        return pos

    def _part(self, part: bytes) -> None:
        """Keep a packet of an event that goes on in the next; take the event when it is whole.

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
    """Tell whether a whole packet is there, before anything is copied."""
    if end - start < _PACKET_HEADER_BYTES:
        return False
    length: int = buffer[start] | buffer[start + 1] << 8 | buffer[start + 2] << 16
    return start + _PACKET_HEADER_BYTES + length <= end


def _no_event(packet: bytes) -> None:
    """Raise what a packet without an event means."""
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
