"""The format description event: how the events of a binlog file are encoded."""

import re
import zlib
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from producers.decoder.errors import UnsupportedEvent
from producers.decoder.events import event_types as types
from producers.decoder.tables.column_types import (
    YEAR_HAS_NO_SIGN,
    YEAR_HAS_SIGN,
    YEAR_SIGN_UNKNOWN,
)
from producers.decoder.values.wire import read_u16, read_u32

HEADER_BYTES: Final = 19
CHECKSUM_BYTES: Final = 4
_CRC32: Final = 1
# Offsets in a format description: event header length, then the post-header length of each type.
_HEADER_LENGTH_AT: Final = 56
_POST_HEADER_AT: Final = 57
_POST_HEADERS: Final = (
    (types.TABLE_MAP, 8),
    (types.WRITE_ROWS_V1, 8),
    (types.UPDATE_ROWS_V1, 8),
    (types.DELETE_ROWS_V1, 8),
    (types.WRITE_ROWS, 10),
    (types.UPDATE_ROWS, 10),
    (types.DELETE_ROWS, 10),
    (types.PARTIAL_UPDATE_ROWS, 10),
)

# The server's version, padded with zeros. Before MySQL 8.0.21 a YEAR has no sign (column_types.py).
_VERSION_AT: Final = 2
_VERSION_END: Final = 52
_VERSION: Final = re.compile(rb"(\d+)\.(\d+)\.(\d+)")
_NO_SIGN_TO: Final = (8, 0, 20)
_SIGN_FROM: Final = (8, 0, 23)


def year_sign(body: bytes, is_mariadb: bool) -> int:
    """Return whether the table maps of the file have a sign for YEAR columns."""
    if is_mariadb:
        return YEAR_HAS_SIGN
    found = _VERSION.match(body[_VERSION_AT:_VERSION_END])
    if found is None:
        return YEAR_SIGN_UNKNOWN
    version = (int(found[1]), int(found[2]), int(found[3]))
    if version <= _NO_SIGN_TO:
        return YEAR_HAS_NO_SIGN
    return YEAR_HAS_SIGN if version >= _SIGN_FROM else YEAR_SIGN_UNKNOWN


def read_format(body: bytes) -> bool:
    """Tell whether the file's events have checksums. UnsupportedEvent on an unknown encoding."""
    if len(body) < _POST_HEADER_AT + types.DELETE_ROWS + 1 + CHECKSUM_BYTES:
        raise UnsupportedEvent("the format description of a server before MySQL 5.6")
    if read_u16(body, 0) != 4 or body[_HEADER_LENGTH_AT] != HEADER_BYTES:
        raise UnsupportedEvent("a binlog version other than 4")
    for event_type, size in _POST_HEADERS:
        at = _POST_HEADER_AT + event_type - 1
        length = body[at] if at < len(body) - CHECKSUM_BYTES - 1 else 0
        if length not in (0, size):  # 0: the server never writes this one
            raise UnsupportedEvent(f"events of type {event_type} with a header of {length} bytes")
    algorithm = body[len(body) - CHECKSUM_BYTES - 1]
    if algorithm > _CRC32:
        raise UnsupportedEvent(f"checksums of the unknown algorithm {algorithm}")
    return bool(algorithm == _CRC32)


# Above this length zlib is faster.
_BY_TABLE_BYTES_MAX: Final = 800
_POLYNOMIAL: Final = 0xEDB88320
_TABLES: Final = 8


def _tables() -> vec[i64]:
    """Return eight tables of 256 sums: of a byte followed by 0 to 7 zero bytes."""
    last: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ _POLYNOMIAL if value & 1 else value >> 1
        last.append(value)
    first = last
    entries: vec[i64] = vec[i64]()
    for _ in range(_TABLES):
        for value in last:
            entries = append(entries, value)
        last = [(value >> 8) ^ first[value & 0xFF] for value in last]
    return entries


class Checksum:
    """Computes CRC32, by tables where that is faster."""

    def __init__(self, by_table: bool) -> None:
        """`by_table`: this module is compiled."""
        self._bytes_max: i64 = _BY_TABLE_BYTES_MAX if by_table else 0
        self._entries: vec[i64] = _tables()

    def of(self, buf: bytes, pos: i64, end: i64) -> i64:
        """Return the CRC32 of buf[pos:end]."""
        if end - pos > self._bytes_max:
            whole: int = zlib.crc32(buf[pos:end])
            return whole
        entries = self._entries
        crc: i64 = 0xFFFFFFFF
        while pos + 8 <= end:
            word = read_i64_le(buf, pos)
            # First what does not depend on the sum so far, so that it need not wait for it.
            ahead = (
                entries[(word >> 56) & 0xFF]
                ^ entries[256 + ((word >> 48) & 0xFF)]
                ^ entries[512 + ((word >> 40) & 0xFF)]
                ^ entries[768 + ((word >> 32) & 0xFF)]
            )
            word ^= crc
            crc = (
                ahead
                ^ entries[1024 + ((word >> 24) & 0xFF)]
                ^ entries[1280 + ((word >> 16) & 0xFF)]
                ^ entries[1536 + ((word >> 8) & 0xFF)]
                ^ entries[1792 + (word & 0xFF)]
            )
            pos += 8
        if pos + 4 <= end:
            word = read_u32(buf, pos) ^ crc
            crc = (
                entries[(word >> 24) & 0xFF]
                ^ entries[256 + ((word >> 16) & 0xFF)]
                ^ entries[512 + ((word >> 8) & 0xFF)]
                ^ entries[768 + (word & 0xFF)]
            )
            pos += 4
        while pos < end:
            crc = (crc >> 8) ^ entries[(crc ^ i64(buf[pos])) & 0xFF]
            pos += 1
        return crc ^ 0xFFFFFFFF
