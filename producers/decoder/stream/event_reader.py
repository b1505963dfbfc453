"""Takes the events of one stream: which kind each has, and what it adds to the log."""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64, u8

from databases.internal_tables import INTERNAL_DATABASE
from event_token.compiled import IS_COMPILED
from producers.decoder.errors import (
    CorruptBinlog,
    DecoderHalt,
    RolledBack,
    StatementInRowStream,
    UnloggedCascade,
    UnsupportedEvent,
)
from producers.decoder.events import event_types as types
from producers.decoder.events.changes import Change
from producers.decoder.events.event_types import QUERY
from producers.decoder.events.format_event import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    Checksum,
    read_format,
    year_sign,
)
from producers.decoder.events.payload import (
    CompressedTransaction,
    PacketedTransaction,
    uncompress_query,
    uncompress_rows,
)
from producers.decoder.events.statements import (
    Definition,
    Statement,
    StatementKind,
    query_database,
    query_sql_mode,
    query_statement,
    shown,
)
from producers.decoder.options import StatementChecks
from producers.decoder.rows.filtered_rows import FilteredRows
from producers.decoder.rows.images import complete_rows, write_image
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.stream.internal_tables import MARK_NOT_ALONE, InternalTables
from producers.decoder.stream.table_versions import TableVersions, statement_header
from producers.decoder.stream.transaction import Transaction
from producers.decoder.stream.xa_transactions import Savepoints, XaTransactions
from producers.decoder.tables.plan import SILENT
from producers.decoder.tables.rows_plans import INSERT, UPDATE, rows_plan_at
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
from topics.progress.record import LastDdl

ROLLBACK_OF_MYSQL: Final = (
    "a ROLLBACK after rows, which MySQL does not log under enforce_gtid_consistency=ON, and the "
    "binlog does not say which rows stayed: start a new log after it with a copy"
)

# A DROP TABLE may name hundreds.
SHOWN_TABLES_MAX: Final = 3
# A longer change that was logged as a statement is not read: its tokens take 50 times its size.
CHANGE_BYTES_MAX: Final = 1024 * 1024
# Of a LOAD DATA's event: the number of its file, and where the file's name is in the statement.
_LOAD_AT: Final = 13
_LOAD_BYTES: Final = 13


class StatementReader:
    """Takes the statements of one stream."""

    def __init__(
        self,
        transaction: Transaction,
        tables: TableVersions,
        xa: XaTransactions,
        savepoints: Savepoints,
        *,
        refuses_cascades: bool,
        checks: StatementChecks | None,
    ) -> None:
        """`refuses_cascades`: stop at foreign keys that change rows, which are in no binlog."""
        self._transaction: Transaction = transaction
        self._tables: TableVersions = tables
        self._xa: XaTransactions = xa
        self._savepoints: Savepoints = savepoints
        self._refuses_cascades: bool = refuses_cascades
        self._checks: StatementChecks | None = checks

    def take(self, body: bytes) -> None:
        """Take a query event's body."""
        raw = query_statement(body)
        read = Statement(raw, query_sql_mode(body))
        statement = read.kind
        transaction = self._transaction
        if statement == StatementKind.NOTHING:
            if transaction.is_open and not transaction.has_begun:
                transaction.end()
            return
        transaction.require_open("a statement")
        if statement == StatementKind.DDL:
            self._ddl(body, raw, read)
        elif statement == StatementKind.ACCOUNT:
            # It may hold a password or its hash, which must not reach Kafka.
            if not transaction.has_begun:
                transaction.end()
        elif statement == StatementKind.BEGIN:
            transaction.begin()
        elif statement == StatementKind.COMMIT:
            if transaction.aside is not None:
                self._savepoints.log_rows()
            transaction.end()
        elif statement in (StatementKind.SAVEPOINT, StatementKind.ROLLBACK_TO):
            self._savepoint(statement, raw)
        elif statement == StatementKind.ROLLBACK:
            self._rollback()
        elif statement == StatementKind.XA:
            self._xa.statement(raw)
        elif statement == StatementKind.CHANGE:
            self._change(body, raw)
        else:
            raise UnsupportedEvent(f"an unknown statement, which begins: {shown(raw)}")

    def _change(self, body: bytes, statement: bytes) -> None:
        """Take a change that was logged as a statement: pass it if it concerns no logged table."""
        reason, table = f"it is longer than {CHANGE_BYTES_MAX} bytes", ""
        if len(statement) <= CHANGE_BYTES_MAX:
            text = statement.decode("utf-8", "backslashreplace")
            change = Change(text, query_database(body), query_sql_mode(body))
            if self._tables.lower_case_names:
                change.to_lower_case()
            reason = self._concern(change)
            table = ".".join(change.tables[-1]) if change.tables else ""
        transaction = self._transaction
        if reason:
            raise StatementInRowStream(
                f"a change was logged as a statement, so its rows are in no binlog, and {reason}: "
                f"set binlog_format=ROW on the source, and give a system-versioned table "
                f"that counts its versions by transactions (BIGINT) TIMESTAMP(6) columns instead; "
                f"the statement begins: {shown(statement)}"
            )
        transaction.statements_passed += 1
        transaction.statement_table = table
        # One without BEGIN is a transaction of its own, but for those between XA START and XA END.
        if not transaction.has_begun and transaction.aside is None:
            transaction.end()

    def _concern(self, change: Change) -> str:
        """Return why a change may concern a table that the log has; "" if it does not."""
        if change.doubt:
            return change.doubt
        internal = self._transaction.internal
        for database, table in change.tables:
            if self._tables.carries(database, table):
                return f"it changes {database}.{table}"
            if internal.refuses_rows:
                internal.refuse(database, table)
        if self._checks is None:
            return "nothing is known of the triggers of the tables that it changes"
        return self._checks.doubt(change, self._transaction.position.to_set)

    def _savepoint(self, statement: StatementKind, raw: bytes) -> None:
        """Take SAVEPOINT, or ROLLBACK TO one, which MySQL logs only where GTIDs allow no rows."""
        transaction = self._transaction
        if transaction.is_rolled_back:
            return
        if transaction.position.is_mysql:
            if statement == StatementKind.ROLLBACK_TO and self._has_rows():
                raise UnsupportedEvent(ROLLBACK_OF_MYSQL)
        elif statement == StatementKind.SAVEPOINT:
            self._savepoints.add(raw)
        else:
            self._savepoints.rollback_to(raw)

    def _rollback(self) -> None:
        """Take ROLLBACK. MariaDB logs it after rows beside a temporary table: they are dropped.

        Definitions stay, for MariaDB cannot roll them back: a CREATE OR REPLACE TABLE ... SELECT
        that fails has dropped the table, and its DROP TABLE is logged before a ROLLBACK.
        """
        transaction = self._transaction
        if self._has_rows() and transaction.position.is_mysql:
            raise UnsupportedEvent(ROLLBACK_OF_MYSQL)
        self._savepoints.drop()
        if transaction.has_records and transaction.record.row_index > transaction.definitions:
            # Some of them are with Kafka's client: abort, and read it again without its rows.
            raise RolledBack(transaction.position.gtid())
        transaction.end()

    def _has_rows(self) -> bool:
        return self._transaction.has_records or self._transaction.aside is not None

    def _ddl(self, body: bytes, statement: bytes, read: Statement) -> None:
        """Add a DDL record; outside BEGIN it is a transaction of its own."""
        transaction = self._transaction
        if transaction.aside is not None:
            transaction.aside.add_event(QUERY, body)
            return
        database = query_database(body)
        definition = Definition(read, database)
        if self._checks is not None:
            self._checks.defined(definition)
        self._tables.defined(definition)
        if self._refuses_cascades and definition.declares_cascade():
            raise UnloggedCascade(
                f"a foreign key changes rows by itself (CASCADE or SET NULL), and this server "
                f"does not log such changes, or is the replica of one that may not; the statement "
                f"begins: {shown(statement)}. Make the key RESTRICT and the changes explicit, and "
                f"copy the tables again from after it; or set accept_unlogged_cascades = true and "
                f"accept that such changes are missing",
                tuple([name for name in definition.names() if name[1]]),
            )
        if self._tables.lower_case_names:
            statement = definition.to_lower_case()
            database = database.lower()
        if definition.moves_rows():
            self._check_moved_rows(definition, statement)
        self._tables.definitions_changed(statement)
        names = definition.names()
        if self._tables.leaves_out_all(names):  # it is about nothing else
            if not transaction.has_begun:
                transaction.end()
            return
        if not transaction.has_records:
            transaction.begin_records()
        text = statement.decode("utf-8")
        self._tables.note_statement(definition, text, transaction.record.next_seq)
        transaction.record.add_statement(
            self._tables.statement_prefix("DDL"),
            statement_header(database.encode("utf-8")),
            encode_string(database) + encode_string(""),
            statement,
        )
        transaction.definitions += 1
        self._note_ddl(names, definition.kind())
        if not transaction.has_begun:
            transaction.end()

    def _check_moved_rows(self, definition: Definition, statement: bytes) -> None:
        """Refuse a definition that changes rows of a wanted table without row events."""
        names = definition.names_after_table()
        wanted = [(d, t) for d, t in names if not self._tables.leaves_out(d, t)]
        shown_names = ", ".join([f"{d}.{t}" for d, t in wanted])
        if wanted or not names:
            raise StatementInRowStream(
                f"ALTER TABLE with IMPORT TABLESPACE, DISCARD TABLESPACE, EXCHANGE PARTITION or "
                f"CONVERT changed the rows of {shown_names or 'a table'}, which are in no "
                f"binlog: start a new log after it with a copy, or leave the table out by a filter "
                f"rule; the statement begins: {shown(statement)}",
                tuple(wanted),
            )

    def _note_ddl(self, names: list[tuple[str, str]], kind: str) -> None:
        """Keep what operators are shown of a definition; its text may hold values.

        Those of the product's own tables are left out.
        """
        if names and all(database == INTERNAL_DATABASE for database, _ in names):
            return
        shown_names = [f"{d}.{t}" if t else d for d, t in names[:SHOWN_TABLES_MAX]]
        more = len(names) - len(shown_names)
        self._transaction.ddl = LastDdl(
            int(self._transaction.commit_us),
            kind,
            ", ".join(shown_names) + (f" and {more} more" if more else ""),
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
        statement_checks: StatementChecks | None,
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
            transaction,
            tables,
            self.xa,
            self.savepoints,
            refuses_cascades=refuses_cascades,
            checks=statement_checks,
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
        elif kind == types.EXECUTE_LOAD_QUERY:
            self._load(take(buf, body, end - body))
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
        if table.internal == SILENT:
            # Its rows are not read: where table maps have no names, it has no columns either.
            self._after_internal()
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

    def _load(self, body: bytes) -> None:
        """Take the statement of a LOAD DATA, a query event with more fields."""
        query = body[:_LOAD_AT] + body[_LOAD_AT + _LOAD_BYTES :]
        self._query(query, 0, len(query))

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
        elif kind == types.EXECUTE_LOAD_QUERY:
            self._load(take(buf, body, end - body))
        elif kind not in types.WITHOUT_CHANGE:
            raise UnsupportedEvent(f"an event of type {kind} inside a compressed transaction")

    def packeted(self, packet: bytes, begin: int) -> PacketedTransaction:
        """Begin to take a TRANSACTION_PAYLOAD event that continues in further packets."""
        self.transaction.require_open("TRANSACTION_PAYLOAD")
        self.transaction.binlog_pos = read_u32(packet, begin + 13)
        has_checksum = self._has_checksum
        verify = self._verify_checksum and has_checksum
        return PacketedTransaction(packet, begin, has_checksum, verify, self._inner_event)
