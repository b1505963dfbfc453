"""Takes the events of one stream: which kind each has, and what it adds to the log."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from event_token.compiled import IS_COMPILED
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    StatementInRowStream,
    UnsupportedEvent,
)
from producers.decoder.events import event_types as types
from producers.decoder.events.checksum import Checksum
from producers.decoder.events.format_event import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    read_format,
    year_sign,
)
from producers.decoder.events.mariadb_compression import uncompress_query, uncompress_rows
from producers.decoder.events.payload import CompressedTransaction, PacketedTransaction
from producers.decoder.rows.filtered_rows import FilteredRows
from producers.decoder.rows.images import write_image
from producers.decoder.rows.partial_rows import complete_rows
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.stream.internal_tables import MARK_NOT_ALONE, InternalTables
from producers.decoder.stream.savepoints import Savepoints
from producers.decoder.stream.statement_reader import StatementReader
from producers.decoder.stream.table_versions import TableVersions
from producers.decoder.stream.transaction import Transaction
from producers.decoder.stream.xa_transactions import XaTransactions
from producers.decoder.tables.rows_plans import INSERT, UPDATE, rows_plan_at
from producers.decoder.values.wire import (
    is_at,
    packed_size,
    read_packed,
    read_u16,
    read_u32,
    read_u48,
    take,
)

_BEGIN: Final = b"BEGIN"


class EventReader:
    """Takes events in order. Offsets are into the buffer that is passed with each."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        *,
        verify_checksum: bool,
        refuses_cascades: bool,
        rolled_back: frozenset[str],
    ) -> None:
        """Write to `transaction.record` what the events change in `tables`.

        `rolled_back`: GTIDs of transactions of MariaDB that end in ROLLBACK, after rows.
        """
        self.transaction: Transaction = transaction
        self.tables: TableVersions = tables
        self.record: RecordWriter = transaction.record
        self.internal: InternalTables = transaction.internal
        self.filtered_rows: FilteredRows = FilteredRows(transaction.record)
        self._verify_checksum: bool = verify_checksum
        self._checksum: Checksum = Checksum(IS_COMPILED)
        self._has_format: bool = False
        self._has_checksum: bool = False
        self._rolled_back: frozenset[str] = rolled_back
        # Last: attributes that are set after `self` is passed on are checked at each use.
        self.xa: XaTransactions = XaTransactions(transaction, tables, self._inner_event)
        self.savepoints: Savepoints = Savepoints(transaction, tables, self._inner_event)
        self._statements: StatementReader = StatementReader(
            transaction, tables, self.xa, self.savepoints, refuses_cascades=refuses_cascades
        )

    def event(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take one event, header included."""
        if end - pos < HEADER_BYTES:
            raise CorruptBinlog(f"an event of {end - pos} bytes")
        kind = i64(buf[pos + 4])
        size = read_u32(buf, pos + 9)
        if size != end - pos:
            raise CorruptBinlog(f"an event should have {size} bytes and has {end - pos}")
        log_pos = read_u32(buf, pos + 13)
        if log_pos:
            self.transaction.binlog_pos = log_pos
        # ROTATE and FORMAT_DESCRIPTION check their own; the types between them are all refused.
        if self._has_checksum and not types.ROTATE <= kind <= types.FORMAT_DESCRIPTION:
            end -= CHECKSUM_BYTES
            if self._verify_checksum:
                self._check(buf, pos, end)
        body: i64 = pos + HEADER_BYTES
        if body > end:
            raise CorruptBinlog("an event has no room for its checksum")
        if kind == types.TABLE_MAP:
            self.transaction.require_open("TABLE_MAP")
            self.tables.map(buf, body, end)
        elif kind >= types.WRITE_ROWS and kind <= types.DELETE_ROWS:
            self._rows(buf, body, end, kind - types.WRITE_ROWS + INSERT, True)
        elif kind == types.GTID:
            self._mysql_transaction(buf, body, end, False)
        elif kind == types.QUERY:
            self._query(buf, body, end)
        elif kind == types.XID:
            self.transaction.require_open("XID")
            self._commit()
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
            self.transaction.require_open("TRANSACTION_PAYLOAD")
            payload = CompressedTransaction(buf, body, end, self._inner_event)
            payload.end()
        elif kind == types.PARTIAL_UPDATE_ROWS:
            self._partial_rows(buf, body, end)
        elif kind == types.XA_PREPARE:
            self.xa.prepare(take(buf, body, end - body))
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
        """Take a ROTATE. The first one comes before it is known whether events have checksums."""
        checked: i64 = end - CHECKSUM_BYTES
        name_at: i64 = pos + HEADER_BYTES + 8
        if name_at > end:
            raise CorruptBinlog("a ROTATE event without a file name")
        has_checksum = checked >= name_at and (
            self._checksum.of(buf, pos, checked) == read_u32(buf, checked)
        )
        if self._has_checksum and self._verify_checksum and not has_checksum:
            raise CorruptBinlog("the checksum of a ROTATE event does not match its bytes")
        if has_checksum:
            end = checked
        if self.transaction.is_open:
            raise CorruptBinlog("a binlog file ends inside a transaction")
        self.transaction.binlog_file = buf[name_at:end].decode("utf-8")
        self.transaction.binlog_pos = read_u32(buf, pos + HEADER_BYTES)

    def _format(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a format description. Its checksum byte counts, not what was asked for."""
        if self.transaction.is_open:
            raise CorruptBinlog("a binlog file begins inside a transaction")
        body = take(buf, pos + HEADER_BYTES, end - pos - HEADER_BYTES)
        self._has_checksum = read_format(body)
        if self._has_checksum and self._verify_checksum:
            self._check(buf, pos, end - CHECKSUM_BYTES)
        self._has_format = True
        self.tables.begin_file(year_sign(body, self.tables.is_mariadb))

    def _mysql_transaction(self, buf: bytes, body: i64, end: i64, is_tagged: bool) -> None:
        position = self.transaction.position
        commit_us = position.read_mysql(buf, body, end, is_tagged)
        self._open_transaction(commit_us, read_u32(buf, body - HEADER_BYTES + 9))
        position.add_mysql()

    def _mariadb_transaction(self, buf: bytes, pos: i64, body: i64, end: i64) -> None:
        position = self.transaction.position
        gtid = position.read_mariadb(buf, pos, body, end)
        self._open_transaction(read_u32(buf, pos) * 1_000_000, read_u32(buf, pos + 9))
        if gtid.refused:
            raise UnsupportedEvent(gtid.refused)
        if len(self._rolled_back) > 0 and position.gtid() in self._rolled_back:
            self.transaction.begin_rolled_back()
        elif not gtid.is_standalone:
            self.transaction.begin()
        position.add_mariadb()

    def _open_transaction(self, commit_us: i64, event_bytes: i64) -> None:
        if not self._has_format:
            raise CorruptBinlog("a GTID event comes before the format description")
        self.transaction.open(commit_us, event_bytes)

    def _commit(self) -> None:
        """End the transaction, with the rows that were put aside after a savepoint."""
        if self.transaction.aside is not None:
            self.savepoints.log_rows()
        self.transaction.end()

    def _rows(self, buf: bytes, pos: i64, end: i64, op: i64, has_extra: bool) -> None:
        """Take a row event's body; a halt names its table."""
        try:
            self._take_rows(buf, pos, end, op, has_extra)
        except DecoderHalt as error:
            if not error.tables:
                error.tables = self.tables.last_named()
            raise

    def _take_rows(self, buf: bytes, pos: i64, end: i64, op: i64, has_extra: bool) -> None:
        transaction = self.transaction
        if not transaction.logs_rows:
            first: i64 = types.WRITE_ROWS if has_extra else types.WRITE_ROWS_V1
            self._put_aside(buf, pos, end, first + op - INSERT)
            return
        table_id = read_u48(buf, pos)
        pos += 8
        if has_extra:
            pos += read_u16(buf, pos)
        table = self.tables.table(table_id)
        if table.is_left_out:
            self.internal.check_left_out(table)
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
        plan = table.filter
        if plan is not None:
            begin = None if transaction.has_records else transaction.begin_records
            self.filtered_rows.write(plan, rows, buf, pos, end, begin_records=begin)
            return
        if not transaction.has_records:
            transaction.begin_records()
        record = self.record
        while pos < end:
            out: BytesWriter = record.open_row(table, rows)
            if rows.has_before:
                record.begin_image(0)
                pos = write_image(record, rows.before, rows.before_present, buf, pos)
            else:
                out.append(u8(0))
            if rows.has_after:
                record.begin_image(1)
                pos = write_image(record, rows.after, rows.after_present, buf, pos)
            else:
                out.append(u8(0))
            if pos > end:
                raise CorruptBinlog("a row runs past the end of its event")
            record.close()

    def _put_aside(self, buf: bytes, pos: i64, end: i64, kind: i64) -> None:
        """Keep the body of a row event, unless its transaction was rolled back."""
        if self.transaction.is_rolled_back:
            return
        table_id = read_u48(buf, pos)
        table = self.tables.table(table_id)
        self.transaction.put_aside(kind, take(buf, pos, end - pos), int(table_id), table.body)

    def _partial_rows(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take the body of an update that holds parts of JSON documents."""
        if not self.transaction.logs_rows:
            self._put_aside(buf, pos, end, types.PARTIAL_UPDATE_ROWS)
            return
        table = self.tables.table(read_u48(buf, pos))
        if table.is_left_out:
            self.internal.check_left_out(table)
            return
        plain = complete_rows(take(buf, pos, end - pos), table)
        self._rows(plain, 0, len(plain), UPDATE, True)

    def _after_internal(self) -> None:
        """Act on what rows of the product's own tables said."""
        transaction = self.transaction
        # At once, not with the next head: END may be the next transaction.
        transaction.clock.follow(self.internal.heartbeat_us)
        mark = self.internal.mark
        if mark is not None:
            if transaction.has_records:
                raise UnsupportedEvent(MARK_NOT_ALONE)
            if mark.hop_time_us is not None:
                # From BEGIN on nothing in this log is older than the hop.
                transaction.clock.advance(mark.hop_time_us)
            transaction.begin_records()
            self.internal.add_mark(self.record, self.tables.statement_prefix("JOURNAL"))
        elif transaction.has_records:
            transaction.stamp()

    def _query(self, buf: bytes, pos: i64, end: i64) -> None:
        """Take a query event's body. BEGIN, which most are, is not copied."""
        begin: i64 = pos + 13 + i64(buf[pos + 8]) + 1 + read_u16(buf, pos + 11)
        if begin > end:
            raise CorruptBinlog("a query event is cut short")
        if self.transaction.is_open and is_at(buf, begin, end - begin, _BEGIN):
            self.transaction.begin()
            return
        self._statements.take(take(buf, pos, end - pos))

    def _inner_event(self, buf: bytes, pos: int, end: int) -> None:
        """Take an event of a compressed or prepared transaction; it has no checksum."""
        kind = i64(buf[pos + 4])
        body: i64 = pos + HEADER_BYTES
        if kind == types.TABLE_MAP:
            self.transaction.require_open("TABLE_MAP")
            self.tables.map(buf, body, end)
        elif types.WRITE_ROWS <= kind <= types.DELETE_ROWS:
            self._rows(buf, body, end, kind - types.WRITE_ROWS + INSERT, True)
        elif types.WRITE_ROWS_V1 <= kind <= types.DELETE_ROWS_V1:
            self._rows(buf, body, end, kind - types.WRITE_ROWS_V1 + INSERT, False)
        elif kind == types.PARTIAL_UPDATE_ROWS:
            self._partial_rows(buf, body, end)
        elif kind == types.QUERY:
            self._query(buf, body, end)
        elif kind == types.XID:
            self.transaction.require_open("XID")
            self.transaction.end()
        elif kind == types.XA_PREPARE:
            self.xa.prepare(take(buf, body, end - body))
        elif kind not in types.WITHOUT_CHANGE:
            raise UnsupportedEvent(f"an event of type {kind} inside a compressed transaction")

    def packeted(self, packet: bytes, begin: int) -> PacketedTransaction:
        """Begin to take a TRANSACTION_PAYLOAD event that continues in further packets."""
        self.transaction.require_open("TRANSACTION_PAYLOAD")
        self.transaction.binlog_pos = read_u32(packet, begin + 13)
        has_checksum = self._has_checksum
        verify = self._verify_checksum and has_checksum
        return PacketedTransaction(packet, begin, has_checksum, verify, self._inner_event)
