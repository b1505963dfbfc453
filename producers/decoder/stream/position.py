"""The position of one stream: the GTID set executed so far, and the transaction under way."""

from librt.strings import BytesWriter
from mypy_extensions import i64

from event_token import GtidSet, MariadbGtidSet, MysqlGtidSet, parse_mysql_gtid
from event_token.running_set import RunningMariadbSet, RunningMysqlSet
from producers.decoder.errors import UnsupportedEvent
from producers.decoder.events.gtid_events import (
    MariadbGtid,
    MysqlGtid,
    read_mariadb_gtid,
    read_mysql_gtid,
    read_tagged_gtid,
)
from producers.decoder.values.wire import read_u32, take, write_numbered, write_string


class StreamPosition:
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
