"""MariaDB's UUID, INET4 and INET6: BINARY in a binlog, and the text of a plain SELECT in the log.

The bytes are in the order of the text for every UUID version: the server undoes its own storage
order before it writes them to the binlog.
"""

import zlib
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from producers.decoder.values import operations as ops
from producers.decoder.values.wire import take, write_string

HIDDEN_OPS: Final[dict[str, int]] = {"uuid": ops.UUID, "inet4": ops.INET4, "inet6": ops.INET6}

_WORDS: Final = 8
# Leading zero words of an IPv6 address that holds an IPv4 one: six, or five before an ffff.
_COMPATIBLE_WORDS: Final = 6
_MAPPED_WORDS: Final = 5


def write_hidden(out: BytesWriter, op: i64, length: i64, raw: bytes) -> None:
    """Write the text of a value of `length` bytes; the server leaves out trailing zeros."""
    if len(raw) > length:
        raise ValueError(f"{len(raw)} bytes in a type of {length}")
    if len(raw) < length:
        raw += b"\0" * (length - len(raw))
    write_string(out, hidden_text(op, raw).encode("ascii"))


def hidden_text(op: i64, raw: bytes) -> str:
    """Return a whole value as the server prints it."""
    if op == ops.UUID:
        digits = raw.hex()
        return "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]])
    if op == ops.INET4:
        return ".".join([str(byte) for byte in raw])
    words = [(raw[2 * i] << 8) | raw[2 * i + 1] for i in range(_WORDS)]
    begin, count = _longest_zeros(words)
    if begin == 0 and (
        count == _COMPATIBLE_WORDS or (count == _MAPPED_WORDS and words[count] == 0xFFFF)
    ):
        front = "::" if count == _COMPATIBLE_WORDS else "::ffff:"
        return front + ".".join([str(byte) for byte in raw[12:]])
    texts = [f"{word:x}" for word in words]
    if count == 0:
        return ":".join(texts)
    return f"{':'.join(texts[:begin])}::{':'.join(texts[begin + count :])}"


def _longest_zeros(words: list[int]) -> tuple[int, int]:
    """Return where the first of the longest runs of zeros begins, and its length."""
    best_begin = 0
    best_count = 0
    count = 0
    for i, word in enumerate(words):
        count = count + 1 if word == 0 else 0
        if count > best_count:
            best_begin, best_count = i + 1 - count, count
    return best_begin, best_count


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
