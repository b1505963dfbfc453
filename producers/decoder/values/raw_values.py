"""Raw values: single Avro values read back from a record, as filter rules and vindexes take them.

Numbers and times are int or float, a DECIMAL is its unscaled int, text is str, bytes are bytes.
"""

from typing import Final

from librt.strings import read_f32_le, read_f64_le, read_i64_be
from mypy_extensions import i64

from producers.decoder.values.wire import long_size, read_long, take
from topics.records.table_shape import UNSIGNED_LONG_BYTES, ValueKind

# How a value is read. Numbers, because comparing enums is slow.
_VARINT: Final = 0
_NINE_BYTES: Final = 1
_DOUBLE: Final = 2
_FLOAT: Final = 3
_TEXT: Final = 4
_DECIMAL: Final = 5
_BYTES: Final = 6
_UNREAD: Final = 7
_FORMS: Final = {
    ValueKind.INT: _VARINT,
    ValueKind.LONG: _VARINT,
    ValueKind.YEAR: _VARINT,
    ValueKind.BIT: _VARINT,
    ValueKind.DATE: _VARINT,
    ValueKind.TIME: _VARINT,
    ValueKind.DATETIME: _VARINT,
    ValueKind.TIMESTAMP: _VARINT,
    ValueKind.UNSIGNED_LONG: _NINE_BYTES,
    ValueKind.BIT64: _NINE_BYTES,
    ValueKind.DOUBLE: _DOUBLE,
    ValueKind.FLOAT: _FLOAT,
    ValueKind.STRING: _TEXT,
    ValueKind.ENUM: _TEXT,
    ValueKind.JSON: _TEXT,
    ValueKind.DECIMAL: _DECIMAL,
    ValueKind.SET: _UNREAD,
}


def raw_form(kind: ValueKind) -> int:
    """Return how `read_raw` reads values of a kind."""
    return _FORMS.get(kind, _BYTES)


def read_raw(record: bytes, at: i64, form: i64) -> object:
    """Read the Avro value at `at`, which is behind its union branch."""
    if form == _VARINT:
        return int(read_long(record, at))
    if form == _NINE_BYTES:
        return int.from_bytes(take(record, at, UNSIGNED_LONG_BYTES), "big")
    if form == _DOUBLE:
        return read_f64_le(record, at)
    if form == _FLOAT:
        return read_f32_le(record, at)
    if form == _UNREAD:
        return b""  # rules only ask whether it is NULL
    content = take(record, at + long_size(record, at), read_long(record, at))
    if form == _TEXT:
        return content.decode("utf-8")
    if form == _DECIMAL:
        if len(content) == 8:
            return int(read_i64_be(content, 0))
        return int.from_bytes(content, "big", signed=True)
    return content
