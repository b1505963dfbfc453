"""Reads chunks, and ties each SELECT to a place in the binlog, as its server family can."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import pymysql

from databases.catalog import estimated_rows
from databases.connection import error_code, error_text, open_connection
from databases.error_codes import PASSING, is_outage
from databases.server_facts import (
    SHOW_PLACE,
    START_SNAPSHOT,
    Place,
    facts_of,
    replica_status,
    snapshot_place,
)
from databases.sql import rows
from event_token import Flavor, MariadbGtidSet
from event_token.errors import ShardstreamError
from producers.copy.chunk import (
    Chunk,
    ChunkConnection,
    ChunkJob,
    ChunkRows,
    Piece,
    chunk_select,
    keys_alone,
)
from producers.copy.definition import (
    CannotCopy,
    ChunkHeld,
    ChunkSpoiled,
    TableDefinition,
)
from producers.copy.part import read_part
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings

# One check serves all chunks of this time.
LOOK_S: Final = 1.0
_MS_A_SECOND: Final = 1000


class Throttle:
    """Checks the load at most once per LOOK_S; used by one thread."""

    def __init__(self, settings: ShardProducerSettings, server: ServerSettings) -> None:
        """`server`: the one that is copied from."""
        self._limits = settings.copy
        self._others = [other for other in settings.servers if other != server]
        self._looked_s = 0.0
        self._reason = ""

    def reason(self, connection: Any) -> str:
        """Why the next chunk should wait; "" if it need not."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_S:
            self._reason = self._threads(connection) or self._replicas()
            self._looked_s = now_s
        return self._reason

    def _threads(self, connection: Any) -> str:
        allowed = self._limits.max_threads_running
        if allowed is None:
            return ""
        [(_, running)] = rows(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")
        if int(running) <= allowed:
            return ""
        return f"waits: the server runs {running} threads, more than {allowed}"

    def _replicas(self) -> str:
        allowed_ms = self._limits.max_replica_lag_ms
        if allowed_ms is None:
            return ""
        for server in self._others:
            try:
                lag_s = _lag_s(server)
            except ShardstreamError as error:
                return f"waits: the lag of {server.name} is unknown: {error}"
            if lag_s is None:
                return f"waits: replication on {server.name} is stopped"
            if lag_s * _MS_A_SECOND > allowed_ms:
                return f"waits: {server.name} is {lag_s} s behind, more than {allowed_ms} ms"
        return ""


def _lag_s(server: ServerSettings) -> int | None:
    """Seconds that a replica is behind, 0 for a primary, None if its replication is stopped."""
    connection = open_connection(server)
    try:
        with server_errors(server, "asking for the lag of"):
            status = replica_status(connection, server)
    finally:
        connection.close()
    lag_s = 0
    for row in status:
        lag = row.get("Seconds_Behind_Source", row.get("Seconds_Behind_Master"))
        if lag is None:
            return None
        lag_s = max(lag_s, int(lag))
    return lag_s


# A transaction is visible some ms after the stream has sent it; with semi-synchronous replication
# only once its replica has answered.
VISIBLE_S_MAX: Final = 30.0
VISIBLE_POLL_S: Final = 0.001
# Unknown column. If the SELECT names only the definition's columns, the table has just changed.
_UNKNOWN_COLUMN: Final = 1054


class ChunkSnapshot(Protocol):
    """How a server family ties a SELECT to its binlog."""

    def begin(self, connection: Any, position: str) -> Place | None:
        """Before the read: ensure that it sees all of `position`, or return the place it sees."""
        ...

    def end(self, connection: Any) -> None:
        """After the read. ChunkSpoiled if the rows cannot be tied to a place."""
        ...


class MysqlSnapshot:
    """A transaction sees everything in the executed set at its beginning.

    What it sees begins with its first read, which must come after `hold_definition`: a snapshot
    that is older than an ALTER shows the catalog of before, and the table of now.
    """

    def begin(self, connection: Any, position: str) -> Place | None:
        """Wait until the server has executed all of `position`."""
        deadline_s = time.monotonic() + VISIBLE_S_MAX
        while True:
            [(is_there,)] = rows(
                connection, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (position,)
            )
            if int(is_there):
                rows(connection, "START TRANSACTION READ ONLY")
                return None
            if time.monotonic() > deadline_s:
                raise ChunkSpoiled("the server has not yet executed what its stream has sent")
            time.sleep(VISIBLE_POLL_S)

    def end(self, connection: Any) -> None:
        """Let definitions go on."""
        rows(connection, "COMMIT")


class MariadbSnapshot:
    """A consistent snapshot reports its binlog position; the executed set runs ahead of it."""

    def __init__(self) -> None:
        self._place: Place = ("", 0)

    def begin(self, connection: Any, position: str) -> Place | None:
        """Open the snapshot; return its place, or None if it shows exactly `position`.

        That is so if the binlog ends with both, of which the position may hold more domains: they
        were deleted, or came with a backup. An idle server is read this way: without commits
        the stream would never pass a place that is not the end of a transaction.
        """
        rows(connection, START_SNAPSHOT)
        self._place = _snapshot_place(connection)
        # In this order: if the binlog has not grown since the snapshot, the set is the snapshot's.
        [(logged,)] = rows(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
        in_log = MariadbGtidSet.parse(position)
        if in_log.reaches(MariadbGtidSet.parse(logged)) and _binlog_end(connection) == self._place:
            return None
        return self._place

    def end(self, connection: Any) -> None:
        """Close it. Another session's SHOW STATUS can change what this one reads, so read twice."""
        after = _snapshot_place(connection)
        rows(connection, "COMMIT")
        if after != self._place:
            raise ChunkSpoiled("the snapshot's position changed between two reads")


def _snapshot_place(connection: Any) -> Place:
    return snapshot_place(rows(connection, SHOW_PLACE))


def _binlog_end(connection: Any) -> Place:
    [(file, offset, *_)] = rows(connection, "SHOW MASTER STATUS")
    return str(file), int(offset)


class ChunkReader:
    """Reads chunks of any table over one connection; used by one thread at a time."""

    def __init__(self, settings: ShardProducerSettings, server: ServerSettings) -> None:
        self._settings = settings
        self._server = server
        self._throttle = Throttle(settings, server)
        self._family = facts_of(settings.flavor)
        self._snapshot: ChunkSnapshot = (
            MysqlSnapshot() if settings.flavor is Flavor.MYSQL else MariadbSnapshot()
        )
        self._chunks: ChunkConnection | None = None

    def read(self, job: ChunkJob) -> Chunk:
        """Read a chunk. Raises CannotCopy, ChunkSpoiled, ServerLost and ServerRefused."""
        try:
            return self._read(job)
        except BaseException:
            self.close()  # An open transaction or half a result ends with the connection.
            raise

    def _read(self, job: ChunkJob) -> Chunk:
        chunks = self._open()
        name = f"{job.database}.{job.table}"
        with server_errors(self._server, f"copying {name} from"), _table_errors(name, job):
            held = self._throttle.reason(chunks.connection)
            if held:
                raise ChunkHeld(held)
            begun = self._snapshot.begin(chunks.connection, job.position)
            # Read within the window: a later change of the definition comes as DDL in the log.
            part = read_part(
                chunks,
                self._settings,
                (job.database, job.table),
                job.after,
                lambda definition: _rows_of(chunks, definition, job),
                is_resumed=job.is_resumed,
            )
            estimated = 0
            if job.after is None:
                estimated = estimated_rows(chunks.connection, job.database, job.table) or 0
            self._snapshot.end(chunks.connection)
            high = self._family.moment(chunks.connection).executed
        return Chunk(part, high, begun, estimated)

    def _open(self) -> ChunkConnection:
        if self._chunks is None or not self._chunks.is_open:
            self._chunks = ChunkConnection(self._server)
        return self._chunks

    def close(self) -> None:
        """Close the connection; a read in another thread ends."""
        if self._chunks is not None:
            self._chunks.close()


def _rows_of(
    chunks: ChunkConnection, definition: TableDefinition, job: ChunkJob
) -> tuple[ChunkRows, bool]:
    """The chunk's rows, and whether the table ends with them.

    With a condition the chunk's last key is found first: rows that it excludes take time, too.
    """
    after = () if job.after is None else job.after.after
    if not job.where:
        found = chunks.read(definition, chunk_select(definition, after, job.rows_max))
        return found, found.rows < job.rows_max
    keys = keys_alone(definition)
    limits = chunks.read(keys, chunk_select(keys, after, 1, skip=job.rows_max - 1))
    upto = limits.pieces[-1].last_key if limits.pieces else ()
    # In an engine without snapshots the second SELECT sees rows inserted since the first one. With
    # a LIMIT beside `upto` they would push out rows at the chunk's end, which no chunk would read
    # again.
    rows_max = None if upto else job.rows_max
    statement = chunk_select(definition, after, rows_max, upto=upto, where=job.where)
    found = chunks.read(definition, statement)
    if not upto:
        return found, found.rows < job.rows_max
    last = found.pieces[-1] if found.pieces else limits.pieces[-1]
    images, rows_left = (last.images, last.rows) if found.pieces else (b"", 0)
    end = Piece(images, rows_left, upto, limits.pieces[-1].last_key_text)
    return ChunkRows([*found.pieces[:-1], end], found.rows, found.bytes_read), False


@contextmanager
def _table_errors(name: str, job: ChunkJob) -> Iterator[None]:
    """Separate errors of this table from faults of the connection."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        code = error_code(error)
        if code in PASSING or (code == _UNKNOWN_COLUMN and not job.where):
            raise ChunkSpoiled(error_text(error)) from error
        if is_outage(code):
            raise
        raise CannotCopy(f"table {name}: {error_text(error)}") from error
