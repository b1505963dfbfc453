"""What MariaDB compresses by zlib: events (`log_bin_compress`), values of COMPRESSED columns."""

import zlib
from typing import Final

from producers.decoder.values.wire import packed_size, read_packed, read_u16, take

# The servers' largest packet; nothing longer was ever logged.
PLAIN_BYTES_MAX: Final = 1024 * 1024 * 1024
_ZLIB: Final = 0
_COLUMN_ZLIB: Final = 8
_WITHOUT_WRAPPER: Final = 8


def uncompress_query(body: bytes) -> bytes:
    """Return a compressed query event's body as that of a plain one."""
    begin = 13 + body[8] + 1 + read_u16(body, 11)
    return take(body, 0, begin) + _uncompress(body, begin)


def uncompress_rows(body: bytes, is_update: bool, has_extra: bool) -> bytes:
    """Return a compressed row event's body as that of a plain one: ids and bitmaps are plain."""
    pos: int = 8
    if has_extra:
        pos += read_u16(body, pos)
    bitmap_bytes = (read_packed(body, pos) + 7) // 8
    pos += packed_size(body, pos) + (2 if is_update else 1) * bitmap_bytes
    return take(body, 0, pos) + _uncompress(body, pos)


def _uncompress(body: bytes, pos: int) -> bytes:
    """A byte says the algorithm and how many bytes, big-endian, say the plain length."""
    head = body[pos]
    algorithm = head >> 4 & 7
    if algorithm != _ZLIB:
        raise ValueError(f"an event is compressed by the unknown algorithm {algorithm}")
    width = head & 7
    size = int.from_bytes(take(body, pos + 1, width), "big")
    if size > PLAIN_BYTES_MAX:
        raise ValueError(f"a compressed event says that it holds {size} bytes")
    plain = zlib.decompressobj().decompress(body[pos + 1 + width :], size + 1)
    if len(plain) != size:
        raise ValueError(f"a compressed event says {size} bytes and does not hold as many")
    return plain


def uncompress_value(stored: bytes) -> bytes:
    """Return the value of a COMPRESSED column: a byte says how it is stored, 0 for as it is."""
    if not stored:
        return stored
    head = stored[0]
    if head >> 4 == 0:
        return stored[1:]
    if head >> 4 != _COLUMN_ZLIB:
        raise ValueError(f"a value is compressed by the unknown algorithm {head >> 4}")
    width = head & 7
    size = int.from_bytes(take(stored, 1, width), "big")
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS if head & _WITHOUT_WRAPPER else zlib.MAX_WBITS)
    plain = unpacker.decompress(stored[1 + width :], size + 1)
    if len(plain) != size or size > PLAIN_BYTES_MAX:
        raise ValueError(f"a compressed value says {size} bytes and does not hold as many")
    return plain
