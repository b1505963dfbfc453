"""How MySQL encodes JSON documents: kinds of values, offsets and lengths.

Two modules read documents: json_binary.py prints them in one pass, json_diff.py takes them apart
to change them.
"""

from typing import Final

from mypy_extensions import i64

from producers.decoder.values.wire import read_u16, read_u32

# The server's own limit on nesting: nothing deeper is a document.
DEPTH_MAX: Final = 100

SMALL_OBJECT: Final = 0
LARGE_OBJECT: Final = 1
SMALL_ARRAY: Final = 2
LARGE_ARRAY: Final = 3
LITERAL: Final = 4
INT16: Final = 5
UINT16: Final = 6
INT32: Final = 7
UINT32: Final = 8
INT64: Final = 9
UINT64: Final = 10
DOUBLE: Final = 11
STRING: Final = 12
OPAQUE: Final = 15


def is_inlined(kind: i64, is_large: bool) -> bool:
    """Tell whether a container holds values of a kind in place of their offset."""
    return LITERAL <= kind <= UINT16 or (is_large and INT32 <= kind <= UINT32)


def read_offset(doc: bytes, pos: i64, is_large: bool) -> i64:
    """Read an offset or a count, which are wider in large containers."""
    return read_u32(doc, pos) if is_large else read_u16(doc, pos)


def read_length(doc: bytes, pos: i64) -> tuple[i64, i64]:
    """Read a length of seven bits per byte; return it and where it ends."""
    size: i64 = 0
    for i in range(5):
        byte = i64(doc[pos + i])
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return size, pos + i + 1
    raise ValueError("a length in binary JSON has more than five bytes")
