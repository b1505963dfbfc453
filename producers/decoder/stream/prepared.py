"""Events that are put aside: of XA transactions up to COMMIT, and after savepoints of MariaDB."""

import re
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.events.event_types import TABLE_MAP
from producers.decoder.values.wire import take

# Events kept in memory, over all XA transactions together; the rest goes to temporary files.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024
# Prepared transactions at once. Each may hold a file open, and a process may have about 1,000.
PREPARED_MAX: Final = 500
_LENGTH_BYTES: Final = 4
_XID_AT: Final = 13  # after the flag, the format and two lengths
_HEADER: Final = struct.Struct("<IBIIIH")

_STATEMENT: Final = re.compile(
    rb"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+"
    rb"(X'[0-9A-Fa-f]*',X'[0-9A-Fa-f]*',\d+)(\s+ONE\s+PHASE)?\s*",
    re.IGNORECASE,
)


def parse_xa(statement: bytes) -> tuple[str, str]:
    """Return verb and identifier of an XA statement as servers log it. Raises ValueError."""
    found = _STATEMENT.fullmatch(statement)
    if found is None:
        raise ValueError("an XA statement does not have the form that servers log")
    verb = found[1].decode("ascii").upper()
    xid = found[2].decode("ascii")
    return "START" if verb == "BEGIN" else verb, xid[0] + xid[1:].lower().replace("x'", "X'")


def parse_xa_prepare(body: bytes) -> tuple[bool, str]:
    """Return whether the transaction is committed in one phase, and its identifier."""
    format_id, first, second = struct.unpack_from("<III", body, 1)
    gtrid = take(body, _XID_AT, first).hex()
    bqual = take(body, _XID_AT + first, second).hex()
    return body[0] != 0, f"X'{gtrid}',X'{bqual}',{format_id}"


class EventSpool:
    """The events of one transaction, in memory or in a file."""

    def __init__(self, owner: "PreparedTransactions", year_sign: int) -> None:
        """`owner` counts the memory of all spools. `year_sign`: of the events' binlog file."""
        self.year_sign: int = year_sign
        self._owner: PreparedTransactions = owner
        self._events: list[bytes] = []
        self._memory_bytes: int = 0
        self._file: IO[bytes] | None = None
        self._last_map: bytes = b""

    def add_map(self, table_id: int, table: bytes) -> None:
        """Add a table map event, unless the last one was the same.

        `table`: the event's body without its id and flags.
        """
        body = table_id.to_bytes(6, "little") + b"\0\0" + table
        if body != self._last_map:
            self._last_map = body
            self.add_event(TABLE_MAP, body)

    def add_event(self, kind: int, body: bytes) -> None:
        """Add an event of a type, with a header for its body."""
        self.add(_HEADER.pack(0, kind, 0, _HEADER.size + len(body), 0, 0) + body)

    def add(self, event: bytes) -> None:
        """Add an event."""
        if self._file is None:
            if self._owner.memory_bytes + len(event) <= self._owner.memory_bytes_max:
                self._events.append(event)
                self._memory_bytes += len(event)
                self._owner.memory_bytes += len(event)
                return
            # The file has no name, and ends with the process.
            self._file = tempfile.TemporaryFile(prefix="shardstream-aside-")  # noqa: SIM115
        self._file.write(len(event).to_bytes(_LENGTH_BYTES, "little"))
        self._file.write(event)

    def events(self) -> Iterator[bytes]:
        """Yield the events in order, once, and release them."""
        self._owner.memory_bytes -= self._memory_bytes
        self._memory_bytes = 0
        kept = self._events
        self._events = []
        yield from kept
        if self._file is None:
            return
        self._file.seek(0)
        while length := self._file.read(_LENGTH_BYTES):
            yield self._file.read(int.from_bytes(length, "little"))
        self.close()

    def close(self) -> None:
        """Release the events."""
        self._owner.memory_bytes -= self._memory_bytes
        self._memory_bytes = 0
        self._events = []
        if self._file is not None:
            self._file.close()
            self._file = None


class Prepared:
    """A transaction between PREPARE and COMMIT."""

    def __init__(self, gtid: str, spool: EventSpool, at_us: int) -> None:
        """`gtid` and `at_us`: of the PREPARE."""
        self.gtid: str = gtid
        self.at_us: int = at_us
        self.spool: EventSpool = spool


class PreparedTransactions:
    """Transactions that are neither committed nor rolled back, by identifier."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self.memory_bytes: int = 0
        self.memory_bytes_max: int = memory_bytes_max
        self._by_xid: dict[str, Prepared] = {}

    def put(self, xid: str, prepared: Prepared) -> None:
        """Keep one. UnsupportedEvent if there are too many."""
        if xid in self._by_xid:
            raise ValueError(f"XA transaction {xid} is prepared a second time")
        if len(self._by_xid) >= PREPARED_MAX:
            raise UnsupportedEvent(
                f"more than {PREPARED_MAX} XA transactions are prepared at once: XA RECOVER on the "
                f"source lists them; commit or roll back the abandoned ones"
            )
        self._by_xid[xid] = prepared

    def pop(self, xid: str) -> Prepared | None:
        """Take one out; None if it was prepared before this log's start."""
        return self._by_xid.pop(xid, None)

    def gtids(self) -> list[str]:
        """Return the GTIDs of their PREPAREs."""
        return [prepared.gtid for prepared in self._by_xid.values()]

    def times_us(self) -> list[int]:
        """Return the times of their PREPAREs."""
        return [prepared.at_us for prepared in self._by_xid.values()]
