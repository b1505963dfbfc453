"""CRC32 of events. Most events are short, and calling zlib costs more than their sum.

Compiled code looks up eight bytes at a time in eight tables (slicing by 8): 0.07 us for an event of
75 bytes instead of 0.3 us. Long events, and the plain decoder, use zlib. docs/decisions.md has
what it saves per row.
"""

import zlib
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from producers.decoder.values.wire import read_u32

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
