"""The transaction under way: when it opens, what its records share, and when it ends."""

from mypy_extensions import i64

from producers.decoder.errors import CorruptBinlog, UnsupportedEvent
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.stream.internal_tables import InternalTables
from producers.decoder.stream.position import StreamPosition
from producers.decoder.stream.prepared import EventSpool
from producers.decoder.stream.stream_clock import StreamClock
from producers.decoder.tables.key_watch import TransactionEnds
from producers.decoder.values.wire import write_long
from topics.progress.record import LastDdl


class Transaction:
    """Opens and ends the transactions of one stream, one at a time."""

    def __init__(
        self,
        position: StreamPosition,
        record: RecordWriter,
        clock: StreamClock,
        internal: InternalTables,
        ends: TransactionEnds,
    ) -> None:
        """Begin between transactions, behind `position`."""
        self.position: StreamPosition = position
        self.record: RecordWriter = record
        self.clock: StreamClock = clock
        self.internal: InternalTables = internal
        self.ends: TransactionEnds = ends
        self.is_open: bool = False  # between a GTID event and the transaction's end
        self.has_begun: bool = False  # BEGIN was read
        self.logs_rows: bool = False  # open, begun, and its rows are not put aside
        self.has_records: bool = False
        self.definitions: i64 = 0  # how many of its records are DDL records
        self.is_rolled_back: bool = False  # it ends in ROLLBACK: its rows are dropped
        self.aside: EventSpool | None = None  # takes its rows until their fate is known
        # Where the stream is, and where the open and the last complete transaction began.
        self.binlog_file: str = ""
        self.binlog_pos: i64 = 0
        self.begin_pos: i64 = 0
        self.committed_file: str = ""
        self.committed_pos: i64 = 0
        # Commit times in microseconds: of the open transaction, and of the last one that ended.
        self.commit_us: i64 = 0
        self.committed_us: i64 = 0
        self.count: i64 = 0  # transactions that ended in the open batch
        self.ddl: LastDdl | None = None  # of the open batch

    def require_open(self, what: str) -> None:
        """Refuse an event outside a transaction."""
        if not self.is_open:
            raise UnsupportedEvent(
                f"{what} outside a transaction with a GTID: the source must run with GTIDs"
            )

    def open(self, commit_us: i64, event_bytes: i64) -> None:
        """Open the transaction whose GTID event, of `event_bytes`, was just read."""
        if self.is_open:
            raise CorruptBinlog("a GTID event inside a transaction")
        self.is_open = True
        self.has_begun = False
        self.logs_rows = False
        self.has_records = False
        self.definitions = 0
        self.is_rolled_back = False
        self.commit_us = commit_us
        self.begin_pos = self.binlog_pos - event_bytes
        self.clock.take(commit_us)

    def begin(self) -> None:
        """BEGIN was read: what follows is rows and statements up to the end."""
        self.has_begun = True
        self.logs_rows = self.aside is None

    def begin_rolled_back(self) -> None:
        """Begin a transaction that ends in ROLLBACK: its rows are dropped."""
        self.has_begun = True
        self.is_rolled_back = True

    def put_aside_to(self, spool: EventSpool) -> None:
        """Put the rows that follow aside, whose fate is not known yet."""
        self.aside = spool
        self.logs_rows = False

    def put_aside(self, kind: i64, event_body: bytes, table_id: int, table: bytes) -> None:
        """Keep a row event with its table map, which is `table` without its id and flags."""
        spool = self.aside
        if spool is None or not self.is_open:
            raise CorruptBinlog("a row event outside a transaction")
        spool.add_map(table_id, table)
        spool.add_event(int(kind), event_body)

    def begin_records(self) -> None:
        """Prepare for the first record."""
        self.record.begin_transaction(self.clock.timestamp_us)
        self.stamp()
        self.has_records = True

    def stamp(self) -> None:
        """Encode what the records share, up to the next origin."""
        out = self.record.stamp.begin()
        self.position.write(out)
        out.write(self.internal.origin)
        write_long(out, self.commit_us)
        self.position.write_gtid(out)
        self.record.stamp.end()

    def end(self) -> None:
        """End it: its last record is the transaction's last."""
        if self.has_records:
            self.record.end_transaction()
        self.internal.end_transaction(self.record.next_seq)
        self.clock.commit()
        self.is_open = False
        self.logs_rows = False
        self.count += 1
        self.committed_us = self.commit_us
        self.committed_file = self.binlog_file
        self.committed_pos = self.begin_pos
        self.ends.note(self.binlog_file, self.binlog_pos, self.record.next_seq)
