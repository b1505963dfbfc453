"""Events that MariaDB compresses by zlib (`log_bin_compress`)."""

import zlib
from typing import Final

from producers.decoder.values.compressed_values import PLAIN_BYTES_MAX
from producers.decoder.values.wire import packed_size, read_packed, read_u16, take

_ZLIB: Final = 0


def uncompress_query(body: bytes) -> bytes:
    """Return the body of the plain query event."""
    begin = 13 + body[8] + 1 + read_u16(body, 11)
    return take(body, 0, begin) + _uncompress(body, begin)


def uncompress_rows(body: bytes, is_update: bool, has_extra: bool) -> bytes:
    """Return the body of the plain row event. Its table id and bitmaps are never compressed."""
    pos: int = 8
    if has_extra:
        pos += read_u16(body, pos)
    bitmap_bytes = (read_packed(body, pos) + 7) // 8
    pos += packed_size(body, pos) + (2 if is_update else 1) * bitmap_bytes
    return take(body, 0, pos) + _uncompress(body, pos)


def _uncompress(body: bytes, pos: int) -> bytes:
    """Uncompress from `pos`: a byte with the algorithm and the width of the plain length."""
    head = body[pos]
    algorithm = head >> 4 & 7
    if algorithm != _ZLIB:
        raise ValueError(f"an event is compressed by the unknown algorithm {algorithm}")
    width = head & 7
    size = int.from_bytes(take(body, pos + 1, width), "big")
    if size > PLAIN_BYTES_MAX:
        raise ValueError(f"a compressed event claims to hold {size} bytes")
    plain = zlib.decompressobj().decompress(body[pos + 1 + width :], size + 1)
    if len(plain) != size:
        raise ValueError(f"a compressed event should have {size} bytes and has another length")
    return plain
