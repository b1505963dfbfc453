"""GTID events of MySQL and MariaDB."""

from typing import Final
from uuid import UUID

from librt.strings import read_i64_le
from mypy_extensions import i64

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.values.wire import is_at, read_u32, read_u56, take

# MySQL: flags, UUID, number, then a type byte and the logical clock, then times.
_SID_AT: Final = 1
_GNO_AT: Final = 17
_CLOCK_TYPE_AT: Final = 25
_COMMIT_TIME_AT: Final = 42
_CLOCK_TYPE: Final = 2
_HAS_ORIGINAL_TIME: Final = 0x80_0000_0000_0000  # bit 55

NO_COMMIT_TIME: Final = (
    "a GTID event whose original commit time is 0, which means unknown: the transaction was first "
    "committed by a server before MySQL 8.0.1, or replayed from its binlog. Upgrade the primary, "
    "and start the log after such transactions, with a copy"
)
# The tagged event is a message of numbered fields (mysql::serialization).
_MESSAGE_VERSION: Final = 1
_FIELD_FLAGS: Final = 0
_FIELD_UUID: Final = 1
_FIELD_GNO: Final = 2
_FIELD_TAG: Final = 3
_FIELD_IMMEDIATE_TIME: Final = 6
_FIELD_ORIGINAL_TIME: Final = 7
_FIELDS: Final = 12

# MariaDB: flags, second byte of flags.
STANDALONE: Final = 1
_GROUP_COMMIT: Final = 2
_PREPARED_XA: Final = 64
_COMPLETED_XA: Final = 128
_TWO_PHASE_ALTER: Final = 2 | 4 | 8
_HARMLESS_EXTRA: Final = 1 | 16  # several engines; a thread id


class MysqlGtid:
    """Source, tag, number, and commit time in microseconds on the first server."""

    def __init__(self) -> None:
        self.sid: bytes = b""
        self.tag: str = ""
        self.gno: i64 = 0
        self.commit_us: i64 = 0
        self.prefix: bytes = b""  # the GTID's text up to its number

    def name(self, sid: bytes, tag: str) -> None:
        """Set source and tag."""
        if sid != self.sid or tag != self.tag or len(self.prefix) == 0:
            self.sid = sid
            self.tag = tag
            self.prefix = f"{UUID(bytes=sid)}:{tag}{':' if tag else ''}".encode("ascii")

    def set_time(self, commit_us: i64) -> None:
        """Set the commit time. UnsupportedEvent on 0, which servers write for an unknown one."""
        if commit_us == 0:
            raise UnsupportedEvent(NO_COMMIT_TIME)
        self.commit_us = commit_us


def read_mysql_gtid(buf: bytes, pos: i64, end: i64, into: MysqlGtid) -> None:
    """Read a GTID event's body.

    Raises ValueError where it has no commit time (before MySQL 8.0.1), UnsupportedEvent on 0.
    """
    if pos + _COMMIT_TIME_AT + 7 > end or i64(buf[pos + _CLOCK_TYPE_AT]) != _CLOCK_TYPE:
        raise ValueError("a GTID event without a commit time: MySQL 8.0.1 or later is needed")
    if len(into.tag) > 0 or not is_at(buf, pos + _SID_AT, _GNO_AT - _SID_AT, into.sid):
        into.name(buf[pos + _SID_AT : pos + _GNO_AT], "")
    into.gno = read_i64_le(buf, pos + _GNO_AT)
    commit_us = read_u56(buf, pos + _COMMIT_TIME_AT)
    if commit_us & _HAS_ORIGINAL_TIME:
        if pos + _COMMIT_TIME_AT + 14 > end:
            raise IndexError("a GTID event is cut short in its original commit time")
        commit_us = read_u56(buf, pos + _COMMIT_TIME_AT + 7)
    into.set_time(commit_us)


class _Message:
    """Reads the variable-length integers of mysql::serialization."""

    def __init__(self, body: bytes) -> None:
        self.body: bytes = body
        self.pos: int = 0

    def unsigned(self) -> int:
        """Read one: it has as many extra bytes as the first byte has low-order ones."""
        first = self.body[self.pos]
        extra = 0
        while extra < 8 and first >> extra & 1:
            extra += 1
        raw = int.from_bytes(take(self.body, self.pos, extra + 1), "little")
        self.pos += extra + 1
        return raw >> min(extra + 1, 8)

    def signed(self) -> int:
        """Read one whose lowest bit is its sign."""
        raw = self.unsigned()
        return -(raw >> 1) - 1 if raw & 1 else raw >> 1


def read_tagged_gtid(body: bytes, into: MysqlGtid) -> None:
    """Read the body of a tagged GTID event (MySQL 8.3 and later)."""
    message = _Message(body)
    version = message.unsigned()
    if version != _MESSAGE_VERSION:
        raise ValueError(f"a tagged GTID event has the unknown version {version}")
    size = message.unsigned()
    if size != len(body):
        raise ValueError(f"a tagged GTID event should have {size} bytes and has {len(body)}")
    message.unsigned()  # the last field that may not be ignored
    numbers: dict[int, int] = {}
    sid = b""
    tag = ""
    while message.pos < len(body):
        field = message.unsigned()
        if field >= _FIELDS:
            raise ValueError(f"a tagged GTID event has the unknown field {field}")
        if field == _FIELD_UUID:
            sid = bytes([message.unsigned() for _ in range(16)])
        elif field == _FIELD_TAG:
            length = message.unsigned()
            tag = take(body, message.pos, length).decode("ascii")
            message.pos += length
        elif field in (_FIELD_GNO, 4, 5):
            numbers[field] = message.signed()
        else:
            numbers[field] = message.unsigned()
    into.name(sid, tag)
    into.gno = numbers[_FIELD_GNO]
    into.set_time(numbers.get(_FIELD_ORIGINAL_TIME, numbers[_FIELD_IMMEDIATE_TIME]))


class MariadbGtid:
    """Domain, server (which is in the event's header), sequence (up to 64 bits) and flags."""

    def __init__(self) -> None:
        self.domain: i64 = 0
        self.server: i64 = 0
        self.sequence: int = 0
        self.is_standalone: bool = False
        self.refused: str = ""


def read_mariadb_gtid(buf: bytes, pos: i64, end: i64, into: MariadbGtid) -> None:
    """Read a MariaDB GTID event's body. `refused` names a use that the decoder does not handle."""
    if pos + 13 > end:
        raise IndexError("a MariaDB GTID event is cut short")
    low = read_i64_le(buf, pos)
    into.sequence = low if low >= 0 else int.from_bytes(buf[pos : pos + 8], "little")
    into.domain = read_u32(buf, pos + 8)
    flags = i64(buf[pos + 12])
    into.is_standalone = flags & STANDALONE != 0
    into.refused = ""
    if flags & (_PREPARED_XA | _COMPLETED_XA):
        into.refused = "an XA transaction"
        return
    extra_at: i64 = pos + 13 + (8 if flags & _GROUP_COMMIT else 0)
    # Without a group commit id the event is padded with zeros to its minimum size.
    extra = i64(buf[extra_at]) if extra_at < end else 0
    if extra & _TWO_PHASE_ALTER:
        into.refused = "an ALTER TABLE in two phases (set binlog_alter_two_phase=OFF)"
    elif extra & ~_HARMLESS_EXTRA & 0xFF:
        into.refused = f"unknown flags {extra:#x}"
