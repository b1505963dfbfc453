"""MySQL's binary JSON: printed as MySQL does, and changed by what partial updates log."""

import json
import re
from base64 import b64encode
from typing import Final, TypeAlias

from librt.strings import read_f64_le, read_i16_le, read_i32_le, read_i64_le
from mypy_extensions import i64

from producers.decoder.values.temporal import decimal_text, fraction_text, read_big_decimal
from producers.decoder.values.wire import packed_size, read_packed, read_u16, read_u32, take

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
    if kind <= LARGE_ARRAY:
        _container(doc, kind, pos, pieces, depth + 1)
    elif kind == STRING:
        size, begin = read_length(doc, pos)
        pieces.append(_quoted(take(doc, begin, size)))
    elif kind == OPAQUE:
        _opaque(doc, pos, pieces)
    elif kind == LITERAL:
        pieces.append(_LITERALS[i64(doc[pos])])
    elif kind == INT16:
        pieces.append(str(i64(read_i16_le(doc, pos))))
    elif kind == UINT16:
        pieces.append(str(read_u16(doc, pos)))
    elif kind == INT32:
        pieces.append(str(i64(read_i32_le(doc, pos))))
    elif kind == UINT32:
        pieces.append(str(read_u32(doc, pos)))
    elif kind == INT64:
        pieces.append(str(read_i64_le(doc, pos)))
    elif kind == UINT64:
        pieces.append(str(int.from_bytes(take(doc, pos, 8), "little")))
    elif kind == DOUBLE:
        pieces.append(double_text(read_f64_le(doc, pos)))
    else:
        raise ValueError(f"binary JSON has a value of the unknown kind {kind}")


def _container(doc: bytes, kind: i64, base: i64, pieces: list[str], depth: i64) -> None:
    """Add an object or array; offsets count from its first byte."""
    if depth > DEPTH_MAX:
        raise ValueError(f"binary JSON is nested deeper than {DEPTH_MAX}")
    is_object = kind <= LARGE_OBJECT
    is_large = kind in (LARGE_OBJECT, LARGE_ARRAY)
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


Node: TypeAlias = "dict[bytes, Node] | list[Node] | bytes"

# Bytes of a value, by its kind: literal, the integers, double.
_SIZES: Final = {4: 1, 5: 2, 6: 2, 7: 4, 8: 4, 9: 8, 10: 8, 11: 8}
_NULL: Final = b"\x04\x00"
_REPLACE: Final = 0
_INSERT: Final = 1
_REMOVE: Final = 2

_LEG: Final = re.compile(r'\.(?:("(?:[^"\\]|\\.)*")|([^.\["]+))|\[(\d+)\]', re.DOTALL)


def apply_diffs(document: bytes, diffs: bytes) -> bytes:
    """Return the document after the diffs of a partial value. ValueError where they do not fit."""
    root: Node = _parse(document, document[0], 1, 0) if document else _NULL
    pos = 0
    while pos < len(diffs):
        operation = diffs[pos]
        size = read_packed(diffs, pos + 1)
        pos += 1 + packed_size(diffs, pos + 1)
        path = take(diffs, pos, size).decode("utf-8")
        pos += size
        value: Node = b""
        if operation != _REMOVE:
            size = read_packed(diffs, pos)
            pos += packed_size(diffs, pos)
            raw = take(diffs, pos, size)
            pos += size
            value = _parse(raw, raw[0], 1, 0)
        root = _apply(root, operation, path, value)
    kind, payload = _encode(root)
    return bytes([kind]) + payload


def _apply(root: Node, operation: int, path: str, value: Node) -> Node:
    """Apply one change; return the root, which it may replace."""
    legs = _legs(path)
    if not legs:
        if operation != _REPLACE:
            raise ValueError(f"operation {operation} on a whole JSON document")
        return value
    parent = root
    for leg in legs[:-1]:
        parent = _step(parent, leg, path)
    last = legs[-1]
    if isinstance(parent, dict) and isinstance(last, bytes):
        if (last in parent) == (operation == _INSERT):
            raise ValueError(f"a change of JSON does not fit its document at {path}")
        if operation == _REMOVE:
            del parent[last]
        else:
            parent[last] = value
    elif isinstance(parent, list) and isinstance(last, int):
        if operation == _INSERT:
            parent.insert(last, value)
        elif last >= len(parent):
            raise ValueError(f"a change of JSON does not fit its document at {path}")
        elif operation == _REMOVE:
            del parent[last]
        else:
            parent[last] = value
    elif last == 0 and operation == _REPLACE:
        # A value that is not an array counts as an array of one.
        return _apply(root, operation, path[: path.rindex("[")], value)
    else:
        raise ValueError(f"a change of JSON does not fit its document at {path}")
    return root


def _legs(path: str) -> list[bytes | int]:
    """Split a path into member names and array indexes."""
    legs: list[bytes | int] = []
    if not path.startswith("$"):
        raise ValueError(f"a JSON path does not begin with $: {path}")
    pos = 1
    while pos < len(path):
        found = _LEG.match(path, pos)
        if found is None:
            raise ValueError(f"a JSON path of an unknown form: {path}")
        if found[3] is not None:
            legs.append(int(found[3]))
        elif found[1] is not None:
            name: str = json.loads(found[1], strict=False)
            legs.append(name.encode("utf-8"))
        else:
            legs.append(found[2].encode("utf-8"))
        pos = found.end()
    return legs


def _step(node: Node, leg: bytes | int, path: str) -> Node:
    """Go one leg down."""
    if isinstance(node, dict) and isinstance(leg, bytes) and leg in node:
        return node[leg]
    if isinstance(node, list) and isinstance(leg, int) and leg < len(node):
        return node[leg]
    if not isinstance(node, list) and leg == 0:
        return node
    raise ValueError(f"a change of JSON does not fit its document at {path}")


def _parse(doc: bytes, kind: int, pos: int, depth: int) -> Node:
    """Take apart the value of a kind at `pos`."""
    if kind <= LARGE_ARRAY:
        if depth >= DEPTH_MAX:
            raise ValueError(f"binary JSON is nested deeper than {DEPTH_MAX}")
        return _parse_container(doc, kind, pos, depth + 1)
    if kind in _SIZES:
        size = _SIZES[kind]
    elif kind in (STRING, OPAQUE):
        begin = pos + (1 if kind == OPAQUE else 0)
        length, end = read_length(doc, begin)
        size = end + length - pos
    else:
        raise ValueError(f"binary JSON has a value of the unknown kind {kind}")
    return bytes([kind]) + take(doc, pos, size)


def _parse_container(doc: bytes, kind: int, base: int, depth: int) -> Node:
    is_object = kind <= LARGE_OBJECT
    is_large = kind in (LARGE_OBJECT, LARGE_ARRAY)
    width = 4 if is_large else 2
    count = read_offset(doc, base, is_large)
    keys_at = base + 2 * width
    values_at = keys_at + (count * (width + 2) if is_object else 0)
    if values_at + count * (1 + width) > len(doc):
        raise IndexError("a binary JSON container runs past the end of its document")
    names: list[bytes] = []
    values: list[Node] = []
    for i in range(count):
        if is_object:
            key_at = keys_at + i * (width + 2)
            begin = base + read_offset(doc, key_at, is_large)
            names.append(take(doc, begin, read_u16(doc, key_at + width)))
        entry = values_at + i * (1 + width)
        is_here = is_inlined(doc[entry], is_large)
        at = entry + 1 if is_here else base + read_offset(doc, entry + 1, is_large)
        values.append(_parse(doc, doc[entry], at, depth))
    return dict(zip(names, values, strict=True)) if is_object else values


def _encode(node: Node) -> tuple[int, bytes]:
    """Return a value's kind and bytes: large containers, keys in the servers' order."""
    if isinstance(node, bytes):
        return node[0], node[1:]
    if isinstance(node, dict):
        names = sorted(node, key=lambda name: (len(name), name))
        values = [node[name] for name in names]
        kind = LARGE_OBJECT
    else:
        names = []
        values = node
        kind = LARGE_ARRAY
    offset = 8 + 6 * len(names) + 5 * len(values)
    heads: list[bytes] = []
    bodies: list[bytes] = []
    for name in names:
        heads.append(offset.to_bytes(4, "little") + len(name).to_bytes(2, "little"))
        bodies.append(name)
        offset += len(name)
    for value in values:
        value_kind, payload = _encode(value)
        if is_inlined(value_kind, True):
            heads.append(bytes([value_kind]) + payload.ljust(4, b"\0"))
        else:
            heads.append(bytes([value_kind]) + offset.to_bytes(4, "little"))
            bodies.append(payload)
            offset += len(payload)
    head = len(values).to_bytes(4, "little") + offset.to_bytes(4, "little")
    return kind, head + b"".join(heads) + b"".join(bodies)
