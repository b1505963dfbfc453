"""Single values out of a record's bytes, as filter rules and vindexes take them.

Numbers and times are int or float, a DECIMAL is its unscaled int, text is str, bytes are bytes.
"""

from typing import Final

from librt.strings import read_f32_le, read_f64_le
from mypy_extensions import i64

from producers.decoder.wire import long_size, read_long, take
from topics.table_shape import UNSIGNED_LONG_BYTES, ValueKind

_VARINT: Final = frozenset(
    (
        *(ValueKind.INT, ValueKind.LONG, ValueKind.YEAR, ValueKind.BIT),
        *(ValueKind.DATE, ValueKind.TIME, ValueKind.DATETIME, ValueKind.TIMESTAMP),
    )
)
_TEXT: Final = frozenset((ValueKind.STRING, ValueKind.ENUM, ValueKind.JSON))


def read_raw(record: bytes, at: i64, kind: ValueKind) -> object:
    """Read the Avro value that begins at `at`, behind its union branch."""
    if kind in _VARINT:
        return int(read_long(record, at))
    if kind in (ValueKind.UNSIGNED_LONG, ValueKind.BIT64):
        return int.from_bytes(take(record, at, UNSIGNED_LONG_BYTES), "big")
    if kind == ValueKind.DOUBLE:
        return read_f64_le(record, at)
    if kind == ValueKind.FLOAT:
        return read_f32_le(record, at)
    if kind == ValueKind.SET:
        return b""  # nothing but whether it is NULL is ever asked
    content = take(record, at + long_size(record, at), read_long(record, at))
    if kind in _TEXT:
        return content.decode("utf-8")
    if kind == ValueKind.DECIMAL:
        return int.from_bytes(content, "big", signed=True)
    return content
