"""The transaction under way: when it opens, what its records share, and when it ends."""

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet, parse_mysql_gtid
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from producers.decoder.errors import CorruptBinlog, UnsupportedEvent
from producers.decoder.events.gtid_events import (
    MariadbGtid,
    MysqlGtid,
    read_mariadb_gtid,
    read_mysql_gtid,
    read_tagged_gtid,
)
from producers.decoder.rows.record_writer import RecordWriter
from producers.decoder.stream.internal_tables import InternalTables
from producers.decoder.stream.prepared import EventSpool
from producers.decoder.tables.plan import TransactionEnds
from producers.decoder.values.wire import read_u32, take, write_long, write_numbered, write_string
from topics.progress.record import LASTS_MAX, LastDdl

# Commit time in microseconds, binlog file, and where the transaction begins in it.
Left = tuple[int, str, int]
# A batch of domains or sources that alternate has as many as transactions.
_LEFT_MAX: Final = 1_024


class StreamClock:
    """Turns commit times into record times, and keeps the head (watermark) to promise."""

    def __init__(
        self,
        floor_us: i64,
        max_ahead_us: i64,
        now_us: Callable[[], int],
        on_notice: Callable[[str], None],
    ) -> None:
        """`floor_us`: the last record's time or the last head promised, whichever is later."""
        self._now_us: Callable[[], int] = now_us
        self._on_notice: Callable[[str], None] = on_notice
        self._max_ahead_us: i64 = max_ahead_us
        self._limit_us: i64 = i64(now_us()) + max_ahead_us
        self._is_clamping: bool = False
        # The time in the log of the open transaction, or of the last one.
        self.timestamp_us: i64 = floor_us
        # What may be promised: not a floor that was clamped to the clock's bound.
        self.head_us: i64 = min(floor_us, self._limit_us - max_ahead_us)
        self._next_head_us: i64 = self.head_us

    def take(self, commit_us: i64) -> None:
        """Set the time of a transaction that opens."""
        if commit_us > self._limit_us:
            self._limit_us = i64(self._now_us()) + self._max_ahead_us
        if commit_us > self._limit_us:
            if not self._is_clamping:
                self._is_clamping = True
                self._on_notice(
                    f"a transaction has a commit time {commit_us - self._limit_us} us later than "
                    f"this host's clock plus {self._max_ahead_us} us: its time in the log is "
                    f"clamped to that bound (SET timestamp was used, or a clock is wrong)"
                )
            commit_us = self._limit_us
        else:
            self._is_clamping = False
            self._next_head_us = max(self._next_head_us, commit_us)
        self.timestamp_us = max(self.timestamp_us, commit_us)

    def follow(self, time_us: i64) -> None:
        """Respect the time of a heartbeat row: what follows it in the log is no earlier."""
        if time_us > self._limit_us:
            self._limit_us = i64(self._now_us()) + self._max_ahead_us
        self.timestamp_us = max(self.timestamp_us, min(time_us, self._limit_us))

    def take_now(self) -> None:
        """Set the time of copied rows, which are no transaction: as early as possible."""
        if self.timestamp_us < 0:
            self.timestamp_us = self._now_us()

    def commit(self) -> None:
        """The transaction has ended: its time may be promised."""
        self.head_us = self._next_head_us

    def advance(self, head_us: i64) -> None:
        """Respect a head that was promised by something else."""
        self.timestamp_us = max(self.timestamp_us, head_us)
        if head_us > self.head_us:
            self.head_us = head_us
            self._next_head_us = max(self._next_head_us, head_us)


class RunningPosition:
    """A running GTID set of one family; a GTID counts as executed once its event was read."""

    def __init__(self, start: GtidSet) -> None:
        """`start`: what the log holds already; its type is the family."""
        self.is_mysql: bool = isinstance(start, MysqlGtidSet)
        self._mysql: RunningMysqlSet = RunningMysqlSet(
            start if isinstance(start, MysqlGtidSet) else MysqlGtidSet()
        )
        self._mariadb: RunningMariadbSet = RunningMariadbSet(
            start if isinstance(start, MariadbGtidSet) else MariadbGtidSet()
        )
        self._mysql_gtid: MysqlGtid = MysqlGtid()
        self._mariadb_gtid: MariadbGtid = MariadbGtid()
        # The text of the GTID under way, and its number where that is not part of the text.
        self._gtid_text: bytes = b""
        self._gtid_number: i64 = -1
        # The one before, if that under way is of another domain (MySQL: source), or leaves numbers
        # out; else "".
        self.left: str = ""
        self._domain: i64 = -1

    def gtid(self) -> str:
        """Return the GTID under way, or else the last one; "" before the first."""
        text = self._gtid_text.decode("ascii")
        return text if self._gtid_number < 0 else f"{text}{self._gtid_number}"

    def text(self) -> str:
        """Return the set executed up to and including the last GTID that was read.

        It leaves out XA transactions that are prepared: a resume gets their rows again.
        """
        text = self._mysql.text() if self.is_mysql else self._mariadb.text()
        return text.decode("ascii")

    def to_set(self) -> GtidSet:
        """Return the same set as a value."""
        if self.is_mysql:
            return self._mysql.to_set()
        return self._mariadb.to_set()

    def read_mysql(self, buf: bytes, body: i64, end: i64, is_tagged: bool) -> i64:
        """Read a GTID event of MySQL; return its commit time in microseconds."""
        gtid = self._mysql_gtid
        if not self.is_mysql:
            raise UnsupportedEvent(
                "a GTID event of MySQL, but this shard is set up as MariaDB: correct `flavor` in "
                "the settings"
            )
        if is_tagged:
            read_tagged_gtid(take(buf, body, end - body), gtid)
        else:
            read_mysql_gtid(buf, body, end, gtid)
        goes_on = gtid.gno == self._gtid_number + 1 and gtid.prefix == self._gtid_text
        self.left = "" if goes_on else self.gtid()
        self._gtid_text = gtid.prefix
        self._gtid_number = gtid.gno
        return gtid.commit_us

    def add_mysql(self) -> None:
        """Count the GTID of MySQL that was read as executed."""
        gtid = self._mysql_gtid
        self._mysql.add(gtid.sid, gtid.tag, gtid.gno)

    def read_mariadb(self, buf: bytes, pos: i64, body: i64, end: i64) -> MariadbGtid:
        """Read a GTID event of MariaDB whose header is at `pos`."""
        gtid = self._mariadb_gtid
        if self.is_mysql:
            raise UnsupportedEvent(
                "a GTID event of MariaDB, but this shard is set up as MySQL: correct `flavor` in "
                "the settings"
            )
        read_mariadb_gtid(buf, body, end, gtid)
        gtid.server = read_u32(buf, pos + 5)
        self.left = "" if gtid.domain == self._domain else self.gtid()
        self._domain = gtid.domain
        self._gtid_text = f"{gtid.domain}-{gtid.server}-{gtid.sequence}".encode("ascii")
        return gtid

    def add_mariadb(self) -> None:
        """Count the GTID of MariaDB that was read as executed."""
        gtid = self._mariadb_gtid
        self._mariadb.add(gtid.domain, gtid.server, gtid.sequence)

    def remove(self, gtid: str) -> None:
        """Take a GTID of MySQL out again: its transaction is prepared, and not decided."""
        without = self._mysql.to_set().subtract(MysqlGtidSet.parse(gtid))
        self._mysql = RunningMysqlSet(without)

    def put_back(self, gtid: str) -> None:
        """Count a GTID that was taken out as executed."""
        sid, tag, gno = parse_mysql_gtid(gtid)
        self._mysql.add(sid, tag, gno)

    def write(self, out: BytesWriter) -> None:
        """Write the executed set as an Avro string."""
        running = self._mysql
        if self.is_mysql and running.last > 0:
            write_numbered(out, running.prefix, running.last, running.suffix)
        else:
            write_string(out, self.text().encode("ascii"))

    def write_gtid(self, out: BytesWriter) -> None:
        """Write the GTID under way as an Avro string."""
        write_numbered(out, self._gtid_text, self._gtid_number, b"")


class Transaction:
    """Opens and ends the transactions of one stream, one at a time."""

    def __init__(
        self,
        position: RunningPosition,
        record: RecordWriter,
        clock: StreamClock,
        internal: InternalTables,
        ends: TransactionEnds,
    ) -> None:
        self.position: RunningPosition = position
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
        # Those of the open batch behind which another domain or interval went on: commit time,
        # file and place by GTID.
        self.left: dict[str, Left] = {}
        self.ddl: LastDdl | None = None  # of the open batch
        # Changes logged as statements that concern no table of the log, and the last one's table.
        self.statements_passed: i64 = 0
        self.statement_table: str = ""

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
        self.write_stamp(self.internal.origin, self.commit_us, has_gtid=True)

    def write_stamp(self, origin: bytes, commit_us: i64, *, has_gtid: bool) -> None:
        """Encode token, commit time and GTID; `has_gtid`: the server has executed it.

        `origin`: the null branch, and the token of a reshard's source if there is one.
        """
        out = self.record.stamp.begin()
        self.position.write(out)
        out.write(origin)
        write_long(out, commit_us)
        if has_gtid:
            self.position.write_gtid(out)
        else:
            write_string(out, b"")
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
        if self.position.left:
            self._leave(self.position.left)
        self.committed_us = self.commit_us
        self.committed_file = self.binlog_file
        self.committed_pos = self.begin_pos
        self.ends.note(self.binlog_file, self.binlog_pos, self.record.next_seq)

    def _leave(self, gtid: str) -> None:
        """Keep the last transaction that ended: the one after it is of another domain or interval.

        What ends none any more is dropped, but only where that makes up for the look.
        """
        self.left.pop(gtid, None)
        if self.committed_file:
            self.left[gtid] = (self.committed_us, self.committed_file, self.committed_pos)
        if len(self.left) >= _LEFT_MAX:
            position = self.position.to_set()
            ends = [each for each in self.left if position.ends_with(each)]
            self.left = {each: self.left[each] for each in ends[-LASTS_MAX:]}
