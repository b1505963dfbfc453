"""Prints MySQL's binary JSON as MySQL does, in one pass."""

from base64 import b64encode
from typing import Final

from librt.strings import read_f64_le, read_i16_le, read_i32_le, read_i64_le
from mypy_extensions import i64

from producers.decoder.values import json_layout as layout
from producers.decoder.values.decimals import decimal_text, read_big_decimal
from producers.decoder.values.json_layout import is_inlined, read_length, read_offset
from producers.decoder.values.temporal import fraction_text
from producers.decoder.values.wire import read_u16, read_u32, take

_LITERALS: Final = ("null", "true", "false")

# Column types that JSON prints in a form of their own.
_TIMESTAMP: Final = 7
_DATE: Final = 10
_TIME: Final = 11
_DATETIME: Final = 12
_NEWDECIMAL: Final = 246
_TEMPORAL_BYTES: Final = 8
_FRACTION_BITS: Final = 24

# A number is printed without an exponent if it has fewer leading zeros after the point, or no more
# whole digits.
_LEADING_ZEROS_MAX: Final = 15
_WHOLE_DIGITS_MAX: Final = 15
_BASE64_LINE: Final = 76

_ESCAPES: Final = {
    **{code: f"\\u{code:04x}" for code in range(0x20)},
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def json_text(document: bytes) -> str:
    """Return the text of a document. An empty one is the JSON null, as the server reads it."""
    if not document:
        return "null"
    pieces: list[str] = []
    _value(document, i64(document[0]), 1, pieces, 0)
    return "".join(pieces)


def _value(doc: bytes, kind: i64, pos: i64, pieces: list[str], depth: i64) -> None:
    """Add the text of the value of that kind at `pos`."""
    if kind <= layout.LARGE_ARRAY:
        _container(doc, kind, pos, pieces, depth + 1)
    elif kind == layout.STRING:
        size, begin = read_length(doc, pos)
        pieces.append(_quoted(take(doc, begin, size)))
    elif kind == layout.OPAQUE:
        _opaque(doc, pos, pieces)
    elif kind == layout.LITERAL:
        pieces.append(_LITERALS[i64(doc[pos])])
    elif kind == layout.INT16:
        pieces.append(str(i64(read_i16_le(doc, pos))))
    elif kind == layout.UINT16:
        pieces.append(str(read_u16(doc, pos)))
    elif kind == layout.INT32:
        pieces.append(str(i64(read_i32_le(doc, pos))))
    elif kind == layout.UINT32:
        pieces.append(str(read_u32(doc, pos)))
    elif kind == layout.INT64:
        pieces.append(str(read_i64_le(doc, pos)))
    elif kind == layout.UINT64:
        pieces.append(str(int.from_bytes(take(doc, pos, 8), "little")))
    elif kind == layout.DOUBLE:
        pieces.append(double_text(read_f64_le(doc, pos)))
    else:
        raise ValueError(f"binary JSON has a value of the unknown kind {kind}")


def _container(doc: bytes, kind: i64, base: i64, pieces: list[str], depth: i64) -> None:
    """Add an object or array; offsets count from its first byte."""
    if depth > layout.DEPTH_MAX:
        raise ValueError(f"binary JSON is nested deeper than {layout.DEPTH_MAX}")
    is_object = kind <= layout.LARGE_OBJECT
    is_large = kind in (layout.LARGE_OBJECT, layout.LARGE_ARRAY)
    width: i64 = 4 if is_large else 2
    count = read_offset(doc, base, is_large)
    size = read_offset(doc, base + width, is_large)
    if base + size > len(doc) or count * (1 + width) > size:
        raise IndexError("a binary JSON container runs past the end of its document")
    keys_at: i64 = base + 2 * width
    values_at: i64 = keys_at + (count * (width + 2) if is_object else 0)
    pieces.append("{" if is_object else "[")
    for i in range(count):
        if i:
            pieces.append(", ")
        if is_object:
            key_at = keys_at + i * (width + 2)
            key_begin = base + read_offset(doc, key_at, is_large)
            pieces.append(_quoted(take(doc, key_begin, read_u16(doc, key_at + width))))
            pieces.append(": ")
        entry = values_at + i * (1 + width)
        value_kind = i64(doc[entry])
        if is_inlined(value_kind, is_large):
            _value(doc, value_kind, entry + 1, pieces, depth)
        else:
            _value(doc, value_kind, base + read_offset(doc, entry + 1, is_large), pieces, depth)
    pieces.append("}" if is_object else "]")


def _quoted(raw: bytes) -> str:
    text = raw.decode("utf-8")
    # Few strings need escapes, and `translate` costs more than everything else here.
    return '"' + (text.translate(_ESCAPES) if _has_escapes(raw) else text) + '"'


def _has_escapes(raw: bytes) -> bool:
    pos: i64 = 0
    size: i64 = len(raw)
    while pos < size:
        byte = i64(raw[pos])
        if byte < 0x20 or byte in (0x22, 0x5C):
            return True
        pos += 1
    return False


def _opaque(doc: bytes, pos: i64, pieces: list[str]) -> None:
    """Add a value of a column type that JSON has no type for."""
    field_type = i64(doc[pos])
    size, begin = read_length(doc, pos + 1)
    raw = take(doc, begin, size)
    if field_type == _NEWDECIMAL:
        precision, scale = i64(raw[0]), i64(raw[1])
        pieces.append(decimal_text(read_big_decimal(raw, 2, precision - scale, scale), scale))
    elif field_type in (_TIMESTAMP, _DATE, _TIME, _DATETIME):
        if size != _TEMPORAL_BYTES:
            raise ValueError(f"a time in binary JSON has {size} bytes")
        pieces.append('"' + _temporal_text(field_type, read_i64_le(raw, 0)) + '"')
    else:
        text = b64encode(raw).decode("ascii")
        lines = [text[at : at + _BASE64_LINE] for at in range(0, len(text), _BASE64_LINE)]
        pieces.append(f'"base64:type{field_type}:' + "\\n".join(lines) + '"')


def _temporal_text(field_type: i64, packed: i64) -> str:
    """Return a packed DATE, TIME, DATETIME or TIMESTAMP as text, always with six digits."""
    sign = "-" if packed < 0 else ""
    positive: i64 = -packed if packed < 0 else packed
    fraction = fraction_text(positive & 0xFFFFFF, 6)
    clock: i64 = positive >> _FRACTION_BITS
    if field_type == _TIME:
        hours: i64 = (clock >> 12) & 0x3FF
        return f"{sign}{hours:02d}:{(clock >> 6) & 63:02d}:{clock & 63:02d}{fraction}"
    year_month: i64 = clock >> 22
    date = f"{year_month // 13:04d}-{year_month % 13:02d}-{(clock >> 17) & 31:02d}"
    if field_type == _DATE:
        return date
    return f"{date} {(clock >> 12) & 31:02d}:{(clock >> 6) & 63:02d}:{clock & 63:02d}{fraction}"


def double_text(value: float) -> str:
    """Return a double as the server prints it inside JSON: `1.0`, `1e20`, `1.5e-7`."""
    mantissa, _, exponent_text = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + (int(exponent_text) if exponent_text else 0)
    point -= len(whole + fraction) - len(digits)
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0.0"
    # `point`: how many digits stand before the decimal point.
    if -_LEADING_ZEROS_MAX < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if 0 < point < len(digits):
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if 0 < point <= _WHOLE_DIGITS_MAX:
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    rest = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"
