"""Values of MariaDB's COMPRESSED columns, which the binlog holds as they are stored."""

import zlib
from typing import Final

from producers.decoder.values.wire import take

# The servers' largest packet; nothing longer was ever logged.
PLAIN_BYTES_MAX: Final = 1024 * 1024 * 1024
_COLUMN_ZLIB: Final = 8
_WITHOUT_WRAPPER: Final = 8


def uncompress_value(stored: bytes) -> bytes:
    """Return the plain value. Its first byte names the algorithm, 0 for none."""
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
        raise ValueError(f"a compressed value should have {size} bytes and has another length")
    return plain
