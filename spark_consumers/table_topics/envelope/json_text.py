"""JSON text of Connect values, as Connect's JsonConverter writes them."""

import re
import struct
from binascii import b2a_base64
from collections.abc import Sequence
from json import dumps
from json.encoder import encode_basestring
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.table_topics.envelope.buffers import content_of
from spark_consumers.table_topics.envelope.connect_schema import (
    ConnectField,
    ConnectSchema,
    json_schema,
)

_NULL: Final = "null"
# What a byte of UTF-8 needs in the strings of Connect's JsonConverter, which escapes control
# characters and, more than JSON requires, characters beyond 16 bits.
_PLAIN: Final = 0
_ESCAPED: Final = 1
_RARE: Final = 2
_KIND_OF_BYTE: Final = np.full(256, _PLAIN, np.uint8)
_KIND_OF_BYTE[[0x22, 0x5C]] = _ESCAPED
_KIND_OF_BYTE[:0x20] = _RARE
_KIND_OF_BYTE[0xF0:] = _RARE
_RARE_PATTERN: Final = r"[\x00-\x1f\x{10000}-\x{10ffff}]"
# In a JSON string: an escaped backslash, which is passed, and where Java's escapes differ.
_JAVA: Final = re.compile("\\\\\\\\|\\\\u00[01][0-9a-f]|[\U00010000-\U0010ffff]")


class JsonText:
    """Writes values as JSON; with `schemas` each message contains its schema."""

    text: Final = pa.string()

    def __init__(self, *, schemas: bool) -> None:
        self._schemas = schemas

    def value(self, schema: ConnectSchema, values: pa.Array) -> pa.Array:
        """Return the text of each value; null remains null, for `struct` to write."""
        match schema.type:
            case "string":
                return quoted(values)
            case "bytes":
                return _base64(values)
            case "struct":
                columns = values.flatten()
                found = self.struct(
                    schema.fields,
                    [self.value(f.schema, v) for f, v in zip(schema.fields, columns, strict=True)],
                )
                if values.null_count == 0:
                    return found
                return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string()))
            case "array":
                return self._list(values)
            case _:
                return values.cast(pa.string())

    def struct(
        self, fields: Sequence[ConnectField], values: Sequence[pa.Array | pa.Scalar]
    ) -> pa.Array:
        """Return objects of values that are JSON text; null is written as null."""
        parts: list[pa.Array | str] = []
        for i, (field, value) in enumerate(zip(fields, values, strict=True)):
            parts += [f"{',' if i else '{'}{dumps(field.name, ensure_ascii=False)}:", value]
        return pc.binary_join_element_wise(
            *parts, "}", "", null_handling="replace", null_replacement=_NULL
        )

    def constant(self, _schema: ConnectSchema, value: str | int | None) -> pa.Scalar:
        """Return the text of one value."""
        return pa.scalar(_NULL if value is None else dumps(value, ensure_ascii=False))

    def message(self, schema: ConnectSchema, body: pa.Array) -> pa.Array:
        """Return messages (binary) of JSON text; null is no message."""
        if self._schemas:
            text = dumps(json_schema(schema), ensure_ascii=False, separators=(",", ":"))
            body = pc.binary_join_element_wise(f'{{"schema":{text},"payload":', body, "}", "")
        return body.cast(pa.binary())

    def _list(self, values: pa.Array) -> pa.Array:
        items = values.values.cast(pa.string())
        texts = pa.ListArray.from_arrays(values.offsets, items)
        found = pc.binary_join_element_wise("[", pc.binary_join(texts, ","), "]", "")
        if values.null_count == 0:
            return found
        return pc.if_else(values.is_valid(), found, pa.scalar(None, pa.string()))


def quoted(values: pa.Array) -> pa.Array:
    """Return strings as JSON text."""
    found = _KIND_OF_BYTE[content_of(values)].max(initial=_PLAIN)
    if found >= _ESCAPED:
        # A backslash first, so that those of the quotes are not doubled.
        escaped = pc.replace_substring(values, "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '\\"')
    else:
        escaped = values
    text = pc.binary_join_element_wise('"', escaped, '"', "")
    if found < _RARE:
        return text
    is_rare = pc.match_substring_regex(values, _RARE_PATTERN).fill_null(fill_value=False)
    texts = [_java_json(text) for text in values.filter(is_rare).to_pylist()]
    return pc.replace_with_mask(text, is_rare, pa.array(texts, pa.string()))


def _java_json(text: str) -> str:
    """Return a JSON string with the bytes that Java writes, so that keys hash alike."""
    return _JAVA.sub(_java_escape, encode_basestring(text))


def _java_escape(found: re.Match[str]) -> str:
    text = found[0]
    if len(text) == 1:
        first, second = struct.unpack(">HH", text.encode("utf-16-be"))
        return f"\\u{first:04X}\\u{second:04X}"
    return text if text == "\\\\" else f"\\u{text[2:].upper()}"


def _base64(values: pa.Array) -> pa.Array:
    texts = [
        None if v is None else b'"%b"' % b2a_base64(v, newline=False) for v in values.to_pylist()
    ]
    return pa.array(texts, pa.binary()).cast(pa.string())
