"""XA transactions of MySQL between PREPARE and COMMIT: their events, put aside (design.md §5)."""

import re
import struct
import tempfile
from collections.abc import Iterator
from typing import IO, Final

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.events.event_types import TABLE_MAP
from producers.decoder.values.wire import take

# Events kept in memory, over all XA transactions at once; the rest lies in temporary files.
MEMORY_BYTES_MAX: Final = 32 * 1024 * 1024
# Prepared transactions at once. Each may hold a file open, and processes have some 1,000.
PREPARED_MAX: Final = 500
_LENGTH_BYTES: Final = 4
_XID_AT: Final = 13  # behind the flag, the format and two lengths
_HEADER: Final = struct.Struct("<IBIIIH")

_STATEMENT: Final = re.compile(
    rb"XA\s+(START|BEGIN|END|PREPARE|COMMIT|ROLLBACK)\s+"
    rb"(X'[0-9A-Fa-f]*',X'[0-9A-Fa-f]*',\d+)(\s+ONE\s+PHASE)?\s*",
    re.IGNORECASE,
)


def parse_xa(statement: bytes) -> tuple[str, str]:
    """Return the verb and the identifier of an XA statement as servers log it; ValueError."""
    found = _STATEMENT.fullmatch(statement)
    if found is None:
        raise ValueError("an XA statement is not of the form that servers log")
    verb = found[1].decode("ascii").upper()
    xid = found[2].decode("ascii")
    return "START" if verb == "BEGIN" else verb, xid[0] + xid[1:].lower().replace("x'", "X'")


def parse_xa_prepare(body: bytes) -> tuple[bool, str]:
    """Return whether the transaction is committed in one phase, and its identifier as above."""
    format_id, first, second = struct.unpack_from("<iII", body, 1)
    gtrid = take(body, _XID_AT, first).hex()
    bqual = take(body, _XID_AT + first, second).hex()
    return body[0] != 0, f"X'{gtrid}',X'{bqual}',{format_id}"


class EventSpool:
    """The events of one transaction, in memory or in a file."""

    def __init__(self, owner: "PreparedTransactions", year_sign: int) -> None:
        """`owner` counts what all spools keep in memory; `year_sign` is their file's."""
        self.year_sign: int = year_sign
        self._owner: PreparedTransactions = owner
        self._events: list[bytes] = []
        self._memory_bytes: int = 0
        self._file: IO[bytes] | None = None
        self._last_map: bytes = b""

    def add_map(self, table_id: int, table: bytes) -> None:
        """Put a table map event before what follows, if the last one is another.

        `table`: the event's body without its id and flags.
        """
        body = table_id.to_bytes(6, "little") + b"\0\0" + table
        if body != self._last_map:
            self._last_map = body
            self.add(_HEADER.pack(0, TABLE_MAP, 0, _HEADER.size + len(body), 0, 0) + body)

    def add(self, event: bytes) -> None:
        """Put an event behind the others."""
        if self._file is None:
            if self._owner.memory_bytes + len(event) <= self._owner.memory_bytes_max:
                self._events.append(event)
                self._memory_bytes += len(event)
                self._owner.memory_bytes += len(event)
                return
            # Nobody else can see the file, and it is gone with the process.
            self._file = tempfile.TemporaryFile(prefix="shardstream-xa-")  # noqa: SIM115
        self._file.write(len(event).to_bytes(_LENGTH_BYTES, "little"))
        self._file.write(event)

    def events(self) -> Iterator[bytes]:
        """Give the events in order, once, and let go of them."""
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
        """Forget the events."""
        self._owner.memory_bytes -= self._memory_bytes
        self._memory_bytes = 0
        self._events = []
        if self._file is not None:
            self._file.close()
            self._file = None


class Prepared:
    """A transaction between PREPARE and COMMIT."""

    def __init__(self, gtid: str, spool: EventSpool) -> None:
        """`gtid`: the one that PREPARE was logged under."""
        self.gtid: str = gtid
        self.spool: EventSpool = spool


class PreparedTransactions:
    """All that are prepared and neither committed nor rolled back, by their identifiers."""

    def __init__(self, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        """Begin with none."""
        self.memory_bytes: int = 0
        self.memory_bytes_max: int = memory_bytes_max
        self._by_xid: dict[str, Prepared] = {}

    def put(self, xid: str, prepared: Prepared) -> None:
        """Keep one; UnsupportedEvent when there are too many."""
        if xid in self._by_xid:
            raise ValueError(f"XA transaction {xid} is prepared a second time")
        if len(self._by_xid) >= PREPARED_MAX:
            raise UnsupportedEvent(
                f"more than {PREPARED_MAX} XA transactions are prepared at once: XA RECOVER on the "
                f"source lists them; commit or roll back those that nobody waits for"
            )
        self._by_xid[xid] = prepared

    def pop(self, xid: str) -> Prepared | None:
        """Take one out; None for one that was prepared before this log's start."""
        return self._by_xid.pop(xid, None)

    def gtids(self) -> list[str]:
        """The GTIDs of all PREPAREs that wait."""
        return [prepared.gtid for prepared in self._by_xid.values()]
