"""Which transaction is open: its GTID and times, the position that it moves, and its end."""

from mypy_extensions import i64

from event_token import (
    GtidSet,
    MariadbGtidSet,
    MysqlGtidSet,
    RunningMariadbSet,
    RunningMysqlSet,
    parse_mysql_gtid,
)
from producers.decoder.errors import CorruptBinlog, UnsupportedEvent
from producers.decoder.events.gtid_events import (
    MariadbGtid,
    MysqlGtid,
    read_mariadb_gtid,
    read_mysql_gtid,
    read_tagged_gtid,
)
from producers.decoder.events.internal_tables import InternalTables
from producers.decoder.events.prepared import EventSpool, Prepared, PreparedTransactions
from producers.decoder.events.stream_clock import StreamClock
from producers.decoder.rows.record_sink import RecordSink
from producers.decoder.tables.table_versions import Tables
from producers.decoder.values.wire import read_u32, take, write_long, write_numbered, write_string


class TransactionReader:
    """Opens and ends transactions; what lies between is its subclass's."""

    def __init__(
        self,
        sink: RecordSink,
        tables: Tables,
        clock: StreamClock,
        mysql_start: MysqlGtidSet | None,
        mariadb_start: MariadbGtidSet | None,
    ) -> None:
        """One of the two starts is the position that the log holds already; it says the family."""
        self.sink: RecordSink = sink
        self.tables: Tables = tables
        self.clock: StreamClock = clock
        self.internal: InternalTables = InternalTables("", [])
        self.is_mysql: bool = mysql_start is not None
        self._mysql_set: RunningMysqlSet = RunningMysqlSet(mysql_start or MysqlGtidSet())
        self._mariadb_set: RunningMariadbSet = RunningMariadbSet(mariadb_start or MariadbGtidSet())
        self._mysql_gtid: MysqlGtid = MysqlGtid()
        self._mariadb_gtid: MariadbGtid = MariadbGtid()
        # The text of the transaction's GTID; the number is apart where it is above 0.
        self._gtid_text: bytes = b""
        self._gtid_number: i64 = -1
        self.is_open: bool = False  # between a GTID event and its transaction's end
        self._has_begun: bool = False  # MySQL: BEGIN was seen
        self._has_records: bool = False
        # XA: what lies between PREPARE and COMMIT, and what is being put aside now.
        self._prepared: PreparedTransactions = PreparedTransactions()
        self._aside: EventSpool | None = None
        self._xid: str = ""
        self._has_format: bool = False
        self.binlog_file: str = ""
        self.binlog_pos: i64 = 0
        self.committed_file: str = ""
        self.committed_pos: i64 = 0
        self.transactions: i64 = 0
        self.commit_us: i64 = 0
        self.committed_us: i64 = 0

    def gtid(self) -> str:
        """The transaction under way, or else the last one; "" before the first."""
        text = self._gtid_text.decode("ascii")
        return text if self._gtid_number < 0 else f"{text}{self._gtid_number}"

    def position(self) -> str:
        """The set executed up to and including the last transaction whose GTID was seen.

        It leaves out XA transactions that are prepared: a resume gets their rows again.
        """
        text = self._mysql_set.text() if self.is_mysql else self._mariadb_set.text()
        return text.decode("ascii")

    def position_set(self) -> MysqlGtidSet | MariadbGtidSet:
        """The same as a value."""
        if self.is_mysql:
            return self._mysql_set.to_set()
        return self._mariadb_set.to_set()

    def reached_set(self) -> GtidSet:
        """All that was seen, prepared XA transactions too."""
        reached: GtidSet = self.position_set()
        for gtid in self._prepared.gtids():
            reached = reached.union(MysqlGtidSet.parse(gtid))
        return reached

    def _require_open(self, what: str) -> None:
        if not self.is_open:
            raise UnsupportedEvent(
                f"{what} outside a transaction with a GTID: the source must run with GTIDs"
            )

    def _open_transaction(self, commit_us: i64) -> None:
        if self.is_open:
            raise CorruptBinlog("a GTID event inside a transaction")
        if not self._has_format:
            raise CorruptBinlog("a GTID event comes before the format description")
        self.is_open = True
        self._has_begun = False
        self._has_records = False
        self.commit_us = commit_us
        self.clock.take(commit_us)

    def _mysql_transaction(self, buf: bytes, body: i64, end: i64, tagged: bool) -> None:
        gtid = self._mysql_gtid
        if not self.is_mysql:
            raise UnsupportedEvent("a GTID event of MySQL from a server set up as MariaDB")
        if tagged:
            read_tagged_gtid(take(buf, body, end - body), gtid)
        else:
            read_mysql_gtid(buf, body, end, gtid)
        self._gtid_text = gtid.prefix
        self._gtid_number = gtid.gno
        self._open_transaction(gtid.commit_us)
        self._mysql_set.add(gtid.sid, gtid.tag, gtid.gno)

    def _mariadb_transaction(self, buf: bytes, pos: i64, body: i64, end: i64) -> None:
        gtid = self._mariadb_gtid
        if self.is_mysql:
            raise UnsupportedEvent("a GTID event of MariaDB from a server set up as MySQL")
        read_mariadb_gtid(buf, body, end, gtid)
        server = read_u32(buf, pos + 5)
        self._gtid_text = f"{gtid.domain}-{server}-{gtid.sequence}".encode("ascii")
        if gtid.refused:
            raise UnsupportedEvent(gtid.refused)
        self._open_transaction(read_u32(buf, pos) * 1_000_000)
        self._has_begun = not gtid.is_standalone
        self._mariadb_set.add(gtid.domain, server, gtid.sequence)

    def _begin_records(self) -> None:
        """Prepare for the transaction's first record."""
        self.sink.begin_transaction(self.clock.timestamp_us)
        self._stamp()
        self._has_records = True

    def _stamp(self) -> None:
        """Encode what the transaction's records share, up to the next origin."""
        out = self.sink.begin_stamp()
        running = self._mysql_set
        if self.is_mysql and running.last > 0:
            write_numbered(out, running.prefix, running.last, running.suffix)
        else:
            write_string(out, self.position().encode("ascii"))
        out.write(self.internal.origin)
        write_long(out, self.commit_us)
        write_numbered(out, self._gtid_text, self._gtid_number, b"")
        self.sink.end_stamp()

    def _end_transaction(self) -> None:
        if self._has_records:
            self.sink.end_transaction()
        self.internal.end_transaction(self.sink.next_seq)
        self.clock.commit()
        self.is_open = False
        self.transactions += 1
        self.committed_us = self.commit_us
        self.committed_file = self.binlog_file
        self.committed_pos = self.binlog_pos
        self.tables.ends.note(self.binlog_file, self.binlog_pos, self.sink.next_seq)

    def _keep_prepared(self) -> None:
        """An XA transaction ends with PREPARE: keep its rows, and its GTID out of the position."""
        spool = self._aside
        if spool is None:
            raise CorruptBinlog("XA PREPARE without XA START")
        gtid = self.gtid()
        self._prepared.put(self._xid, Prepared(gtid, spool))
        self._aside = None
        without = self._mysql_set.to_set().subtract(MysqlGtidSet.parse(gtid))
        self._mysql_set = RunningMysqlSet(without)
        self._end_transaction()

    def _take_prepared(self, xid: str) -> EventSpool | None:
        """Take the rows of a transaction that is decided; its PREPARE counts as executed now."""
        prepared = self._prepared.pop(xid)
        if prepared is None:
            return None
        sid, tag, gno = parse_mysql_gtid(prepared.gtid)
        self._mysql_set.add(sid, tag, gno)
        return prepared.spool
