"""Applies changes of parts of a JSON document (`binlog_row_value_options=PARTIAL_JSON`).

A document is taken apart into dicts by key, lists, and leaves: a value's bytes after its kind.
"""

import json
import re
from typing import Final, TypeAlias

from producers.decoder.values import json_layout as layout
from producers.decoder.values.json_layout import is_inlined, read_length, read_offset
from producers.decoder.values.wire import packed_size, read_packed, read_u16, take

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
    if kind <= layout.LARGE_ARRAY:
        if depth >= layout.DEPTH_MAX:
            raise ValueError(f"binary JSON is nested deeper than {layout.DEPTH_MAX}")
        return _parse_container(doc, kind, pos, depth + 1)
    if kind in _SIZES:
        size = _SIZES[kind]
    elif kind in (layout.STRING, layout.OPAQUE):
        begin = pos + (1 if kind == layout.OPAQUE else 0)
        length, end = read_length(doc, begin)
        size = end + length - pos
    else:
        raise ValueError(f"binary JSON has a value of the unknown kind {kind}")
    return bytes([kind]) + take(doc, pos, size)


def _parse_container(doc: bytes, kind: int, base: int, depth: int) -> Node:
    is_object = kind <= layout.LARGE_OBJECT
    is_large = kind in (layout.LARGE_OBJECT, layout.LARGE_ARRAY)
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
        kind = layout.LARGE_OBJECT
    else:
        names = []
        values = node
        kind = layout.LARGE_ARRAY
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
