"""Events to records: which transaction is open, when it ends, and what each event adds to it."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token import MariadbGtidSet, MysqlGtidSet
from event_token.compiled import IS_COMPILED
from producers.decoder.errors import CorruptBinlog, StatementInRowStream, UnsupportedEvent
from producers.decoder.events import event_types as types
from producers.decoder.events.checksum import Checksum
from producers.decoder.events.format_event import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    read_format,
    year_sign,
)
from producers.decoder.events.internal_tables import MARK_NOT_ALONE
from producers.decoder.events.mariadb_compression import uncompress_query, uncompress_rows
from producers.decoder.events.payload import CompressedTransaction, PacketedTransaction
from producers.decoder.events.prepared import EventSpool, parse_xa, parse_xa_prepare
from producers.decoder.events.query_events import (
    Statement,
    classify,
    query_database,
    query_sql_mode,
    query_statement,
    shown,
)
from producers.decoder.events.stream_clock import StreamClock
from producers.decoder.events.transactions import TransactionReader
from producers.decoder.rows.partial_rows import complete_rows
from producers.decoder.rows.record_sink import RecordSink
from producers.decoder.rows.row_values import write_image
from producers.decoder.tables.table_versions import (
    INSERT,
    UPDATE,
    Tables,
    rows_plan_at,
    statement_header,
)
from producers.decoder.values.wire import (
    encode_string,
    is_at,
    packed_size,
    read_packed,
    read_u16,
    read_u32,
    read_u48,
    take,
)

_BEGIN: Final = b"BEGIN"


class EventReader(TransactionReader):
    """Takes the events of one stream in order. Offsets are into the buffer given with each."""

    def __init__(
        self,
        sink: RecordSink,
        tables: Tables,
        clock: StreamClock,
        mysql_start: MysqlGtidSet | None,
        mariadb_start: MariadbGtidSet | None,
    ) -> None:
        """One of the two starts is the position that the log holds already; it says the family."""
        super().__init__(sink, tables, clock, mysql_start, mariadb_start)
        self.verify_checksum: bool = True
        self._checksum: Checksum = Checksum(IS_COMPILED)
        self._has_checksum: bool = False

    def event(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take one event, header included."""
        if end - pos < HEADER_BYTES:
            raise CorruptBinlog(f"an event of {end - pos} bytes")
        kind = i64(buf[pos + 4])
        size = read_u32(buf, pos + 9)
        if size != end - pos:
            raise CorruptBinlog(f"an event says that it has {size} bytes, and has {end - pos}")
        log_pos = read_u32(buf, pos + 13)
        if log_pos:
            self.binlog_pos = log_pos
        # ROTATE and FORMAT_DESCRIPTION see to theirs; of the types between, all are refused.
        if self._has_checksum and not types.ROTATE <= kind <= types.FORMAT_DESCRIPTION:
            end -= CHECKSUM_BYTES
            if self.verify_checksum:
                self._check(buf, pos, end)
        body: i64 = pos + HEADER_BYTES
        if body > end:
            raise CorruptBinlog("an event has no room for its checksum")
        if kind == types.TABLE_MAP:
            self._require_open("TABLE_MAP")
            self.tables.map(buf, body, end)
        elif kind >= types.WRITE_ROWS and kind <= types.DELETE_ROWS:
            self._rows(buf, body, end, kind - types.WRITE_ROWS + INSERT, True)
        elif kind == types.GTID:
            self._mysql_transaction(buf, body, end, False)
        elif kind == types.QUERY:
            self._query(buf, body, end)
        elif kind == types.XID:
            self._require_open("XID")
            self._end_transaction()
        elif kind >= types.WRITE_ROWS_V1 and kind <= types.DELETE_ROWS_V1:
            self._rows(buf, body, end, kind - types.WRITE_ROWS_V1 + INSERT, False)
        elif kind == types.MARIADB_GTID:
            self._mariadb_transaction(buf, pos, body, end)
        else:
            self._rare_event(buf, pos, body, end, kind)

    def _check(self, buf: bytes, pos: i64, end: i64) -> None:
        if self._checksum.of(buf, pos, end) != read_u32(buf, end):
            raise CorruptBinlog(
                f"the checksum of an event of type {buf[pos + 4]} does not match its bytes"
            )

    def _rare_event(self, buf: bytes, pos: i64, body: i64, end: i64, kind: i64) -> None:
        if kind == types.ROTATE:
            self._rotate(buf, pos, end)
        elif kind == types.FORMAT_DESCRIPTION:
            self._format(buf, pos, end)
        elif kind in types.WITHOUT_CHANGE:
            if not self._has_format and kind not in (types.HEARTBEAT, types.HEARTBEAT_V2):
                raise CorruptBinlog("an event comes before the format description")
        elif kind == types.GTID_TAGGED:
            self._mysql_transaction(buf, body, end, True)
        elif kind == types.TRANSACTION_PAYLOAD:
            self._require_open("TRANSACTION_PAYLOAD")
            payload = CompressedTransaction(buf, body, end, self._inner_event)
            payload.end()
        elif kind == types.PARTIAL_UPDATE_ROWS:
            self._partial_rows(buf, body, end)
        elif kind == types.XA_PREPARE:
            self._xa_prepare(take(buf, body, end - body))
        elif kind == types.MARIADB_QUERY_COMPRESSED:
            plain = uncompress_query(take(buf, body, end - body))
            self._query(plain, 0, len(plain))
        elif types.MARIADB_WRITE_ROWS_COMPRESSED_V1 <= kind <= types.MARIADB_DELETE_ROWS_COMPRESSED:
            index: i64 = kind - types.MARIADB_WRITE_ROWS_COMPRESSED_V1
            has_extra = index >= 3
            op: i64 = index % 3 + INSERT
            plain = uncompress_rows(take(buf, body, end - body), op == UPDATE, has_extra)
            self._rows(plain, 0, len(plain), op, has_extra)
        elif kind in types.STATEMENTS:
            raise StatementInRowStream(types.STATEMENTS[kind])
        elif kind in types.REFUSED:
            raise UnsupportedEvent(types.REFUSED[kind])
        else:
            raise UnsupportedEvent(f"an event of the unknown type {kind}")

    def _rotate(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a ROTATE; the first one comes before it is known whether events have checksums."""
        checked: i64 = end - CHECKSUM_BYTES
        name_at: i64 = pos + HEADER_BYTES + 8
        if name_at > end:
            raise CorruptBinlog("a ROTATE event without a file name")
        has_checksum = checked >= name_at and (
            self._checksum.of(buf, pos, checked) == read_u32(buf, checked)
        )
        if self._has_checksum and self.verify_checksum and not has_checksum:
            raise CorruptBinlog("the checksum of a ROTATE event does not match its bytes")
        if has_checksum:
            end = checked
        if self.is_open:
            raise CorruptBinlog("a binlog file ends inside a transaction")
        self.binlog_file = buf[name_at:end].decode("utf-8")
        self.binlog_pos = read_u32(buf, pos + HEADER_BYTES)

    def _format(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a format description: believe its checksum byte, whatever was asked for."""
        if self.is_open:
            raise CorruptBinlog("a binlog file begins inside a transaction")
        body = take(buf, pos + HEADER_BYTES, end - pos - HEADER_BYTES)
        self._has_checksum = read_format(body)
        if self._has_checksum and self.verify_checksum:
            self._check(buf, pos, end - CHECKSUM_BYTES)
        self._has_format = True
        self.tables.begin_file(year_sign(body, self.tables.is_mariadb))

    def _rows(self, buf: bytes, pos: i64, end: i64, op: i64, has_extra: bool) -> None:
        """Take a row event's body."""
        if not self.is_open or not self._has_begun:
            self._put_aside(buf, pos, end)
            return
        table_id = read_u48(buf, pos)
        pos += 8
        if has_extra:
            pos += read_u16(buf, pos)
        table = self.tables.table(table_id)
        if table.is_left_out:
            self.internal.see_left_out(table)
            return
        bitmaps_at: i64 = pos
        maps: i64 = 2 if op == UPDATE else 1
        pos += packed_size(buf, pos) + maps * ((read_packed(buf, pos) + 7) >> 3)
        if pos > end:
            raise CorruptBinlog("a row event is cut short")
        rows = rows_plan_at(table, op, buf, bitmaps_at, pos)
        if (table.internal or self.internal.refuses_rows) and self.internal.takes(
            table, rows, op, take(buf, pos, end - pos)
        ):
            self._after_internal()
            return
        if table.row_filter is not None:
            begin = None if self._has_records else self._begin_records
            table.row_filter.write(self.sink, rows, buf, pos, end, begin_records=begin)
            return
        if not self._has_records:
            self._begin_records()
        sink = self.sink
        while pos < end:
            out: BytesWriter = sink.open_row(table, rows)
            if rows.has_before:
                sink.image = 0
                out.append(u8(2))
                pos = write_image(sink, rows.before, rows.before_present, buf, pos)
            else:
                out.append(u8(0))
            if rows.has_after:
                sink.image = 1
                out.append(u8(2))
                pos = write_image(sink, rows.after, rows.after_present, buf, pos)
            else:
                out.append(u8(0))
            if pos > end:
                raise CorruptBinlog("a row passes the end of its event")
            sink.close()

    def _partial_rows(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take the body of an update that holds parts of JSON documents."""
        if not self.is_open or not self._has_begun:
            self._put_aside(buf, pos, end)
            return
        table = self.tables.table(read_u48(buf, pos))
        if table.is_left_out:
            self.internal.see_left_out(table)
            return
        plain = complete_rows(take(buf, pos, end - pos), table)
        self._rows(plain, 0, len(plain), UPDATE, True)

    def _after_internal(self) -> None:
        """Act on what rows of the product's own tables have said."""
        mark = self.internal.mark
        if mark is not None:
            if self._has_records:
                raise UnsupportedEvent(MARK_NOT_ALONE)
            if mark.hop_time_us is not None:
                # From BEGIN on nothing in this log is older than the hop.
                self.clock.advance(mark.hop_time_us)
            self._begin_records()
            self.internal.add_mark(self.sink, self.tables)
        elif self._has_records:
            self._stamp()

    def _query(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a query event's body; BEGIN, which most are, without a copy."""
        begin: i64 = pos + 13 + i64(buf[pos + 8]) + 1 + read_u16(buf, pos + 11)
        if begin > end:
            raise CorruptBinlog("a query event is cut short")
        if self.is_open and is_at(buf, begin, end - begin, _BEGIN):
            self._has_begun = True
            return
        self._statement(take(buf, pos, end - pos))

    def _statement(self, body: bytes) -> None:
        raw = query_statement(body)
        statement = classify(raw, query_sql_mode(body))
        if statement == Statement.NOTHING:
            if self.is_open and not self._has_begun:
                self._end_transaction()
            return
        self._require_open("a statement")
        if statement == Statement.DDL:
            self._ddl(body, raw)
        elif statement == Statement.BEGIN:
            self._has_begun = True
        elif statement == Statement.COMMIT:
            self._end_transaction()
        elif statement == Statement.SAVEPOINT:
            pass  # what was rolled back to it never reached the binlog, or comes as ROLLBACK TO
        elif statement in (Statement.ROLLBACK, Statement.ROLLBACK_TO):
            if self._has_records or self._aside is not None:
                raise UnsupportedEvent(
                    "a ROLLBACK behind rows: the transaction mixes tables that can be rolled "
                    "back with tables that cannot, and the binlog does not say which rows stayed"
                )
            if statement == Statement.ROLLBACK:
                self._end_transaction()
        elif statement == Statement.XA:
            self._xa(raw)
        elif statement == Statement.CHANGE:
            raise StatementInRowStream(
                f"a change was logged as a statement, so its rows are in no binlog: "
                f"SET GLOBAL binlog_format=ROW on the source; the statement begins: {shown(raw)}"
            )
        else:
            raise UnsupportedEvent(f"an unknown statement, beginning: {shown(raw)}")

    def _inner_event(self, buf: bytes, pos: int, end: int) -> None:
        """Take an event out of a compressed or prepared transaction; it has no checksum."""
        kind = i64(buf[pos + 4])
        body: i64 = pos + HEADER_BYTES
        if kind == types.TABLE_MAP:
            self._require_open("TABLE_MAP")
            self.tables.map(buf, body, end)
        elif types.WRITE_ROWS <= kind <= types.DELETE_ROWS:
            self._rows(buf, body, end, kind - types.WRITE_ROWS + INSERT, True)
        elif kind == types.PARTIAL_UPDATE_ROWS:
            self._partial_rows(buf, body, end)
        elif kind == types.QUERY:
            self._query(buf, body, end)
        elif kind == types.XID:
            self._require_open("XID")
            self._end_transaction()
        elif kind == types.XA_PREPARE:
            self._xa_prepare(take(buf, body, end - body))
        elif kind not in types.WITHOUT_CHANGE:
            raise UnsupportedEvent(f"an event of type {kind} inside a compressed transaction")

    def packeted(self, packet: bytes, begin: int) -> PacketedTransaction:
        """Begin to take a TRANSACTION_PAYLOAD event that goes on in further packets."""
        self._require_open("TRANSACTION_PAYLOAD")
        self.binlog_pos = read_u32(packet, begin + 13)
        has_checksum = self._has_checksum
        verify = self.verify_checksum and has_checksum
        return PacketedTransaction(packet, begin, has_checksum, verify, self._inner_event)

    def _xa(self, statement: bytes) -> None:
        """Take an XA statement."""
        verb, xid = parse_xa(statement)
        if self._aside is not None and verb != "END":
            raise UnsupportedEvent(f"XA {verb} of {xid} inside {self._xid}, behind its rows")
        if verb == "START":
            self._aside = EventSpool(self._prepared, self.tables.year_sign)
            self._xid = xid
        elif verb == "COMMIT":
            spool = self._take_prepared(xid)
            if spool is None:
                raise UnsupportedEvent(
                    f"XA COMMIT of {xid}, whose PREPARE is before this log's start, and its rows "
                    f"with it: start the log before the PREPARE, or behind the COMMIT with a copy"
                )
            self._replay(spool)
        elif verb == "ROLLBACK":
            spool = self._take_prepared(xid)
            if spool is not None:
                spool.close()
            self._end_transaction()
        elif verb != "END" or xid != self._xid:
            raise CorruptBinlog(f"XA {verb} of {xid} inside {self._xid or 'no XA transaction'}")

    def _xa_prepare(self, body: bytes) -> None:
        """Take the event that ends an XA transaction's part: prepared, or committed at once."""
        is_one_phase, xid = parse_xa_prepare(body)
        spool = self._aside
        if spool is None or xid != self._xid:
            raise CorruptBinlog(f"XA PREPARE of {xid} inside {self._xid or 'no XA transaction'}")
        if is_one_phase:
            self._aside = None
            self._replay(spool)
        else:
            self._keep_prepared()

    def _put_aside(self, buf: bytes, pos: i64, end: i64) -> None:
        """Keep a row event of an XA transaction with its table map; `pos` is behind its header."""
        spool = self._aside
        if spool is None or not self.is_open:
            raise CorruptBinlog("a row event outside a transaction")
        table_id = read_u48(buf, pos)
        table = self.tables.table(table_id)
        spool.add_map(int(table_id), table.body)
        spool.add(take(buf, pos - HEADER_BYTES, end - pos + HEADER_BYTES))

    def _replay(self, spool: EventSpool) -> None:
        """Log what was put aside, as the open transaction's."""
        self._has_begun = True
        now = self.tables.use_year_sign(spool.year_sign)
        for event in spool.events():
            self._inner_event(event, 0, len(event))
        self.tables.use_year_sign(now)
        self._end_transaction()

    def _ddl(self, body: bytes, statement: bytes) -> None:
        """Add a DDL record; outside BEGIN it is a transaction of its own."""
        self.tables.ddl_seen(statement, query_sql_mode(body))
        if not self._has_records:
            self._begin_records()
        database, text = query_database(body), statement.decode("utf-8")
        self.tables.note_statement(text, self.sink.next_seq)
        self.sink.add_statement(
            self.tables.statement_prefix("DDL"),
            statement_header(database.encode("utf-8")),
            encode_string(database) + encode_string(""),
            statement,
        )
        if not self._has_begun:
            self._end_transaction()
