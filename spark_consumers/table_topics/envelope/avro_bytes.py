"""Avro of Connect values, in the Confluent wire format."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.table_topics.envelope.buffers import Bytes, Numbers, binary_array, numbers_of
from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from topics.records.wire import wire_header

# The branch of a union before a value: null is branch 0, except where the default is not null.
_FIRST: Final = 0x00
_SECOND: Final = 0x02
_NULL: Final = b"\x00"
_ARROW: Final = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}


class AvroBytes:
    """Encodes values as Avro. `schema_ids`: the registered id of each message's schema, by name."""

    def __init__(self, schema_ids: Mapping[str, int]) -> None:
        self._headers = {name: wire_header(found) for name, found in schema_ids.items()}

    def value(self, schema: ConnectSchema, values: pa.Array) -> pa.Array:
        """Return the bytes of each value, its union branch included; null remains null."""
        branch = None
        if schema.optional:
            branch = _SECOND if schema.default is None else _FIRST
        match schema.type:
            case "int16" | "int32" | "int64":
                return _varints(numbers_of(values), branch, values)
            case "boolean":
                flags = values.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
                return _fixed(flags.astype(np.uint8).reshape(-1, 1), branch, values)
            case "float" | "double":
                numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
                raw = numbers.astype("<f4" if schema.type == "float" else "<f8")
                return _fixed(raw.view(np.uint8).reshape(len(raw), -1), branch, values)
            case "string" | "bytes":
                content = values.cast(pa.binary())
                return _joined(_varints(_sizes(content), branch, values), content)
            case "array":
                return self._list(schema, branch, values)
            case _:
                found = self.struct(
                    schema.fields,
                    [
                        self.value(field.schema, column)
                        for field, column in zip(schema.fields, values.flatten(), strict=True)
                    ],
                )
                if branch is None:
                    return found
                nothing = pa.scalar(None, pa.binary())
                prefix = pc.if_else(values.is_valid(), bytes([branch]), nothing)
                return _joined(prefix, found)

    def struct(
        self, _fields: Sequence[ConnectField], values: Sequence[pa.Array | pa.Scalar]
    ) -> pa.Array:
        """Return records of encoded values; null is written as branch 0."""
        return pc.binary_join_element_wise(
            *values, b"", null_handling="replace", null_replacement=_NULL
        )

    def constant(self, schema: ConnectSchema, value: str | int | None) -> pa.Scalar:
        """Return the bytes of one value."""
        if value is None:
            return pa.scalar(_NULL)
        return self.value(schema, pa.array([value], _ARROW[schema.type]))[0]

    def message(self, schema: ConnectSchema, bodies: pa.Array) -> pa.Array:
        """Return messages: a zero, the id of the schema and the record."""
        return _joined(pa.scalar(self._headers[schema.name or ""]), bodies)

    def _list(self, schema: ConnectSchema, branch: int | None, values: pa.Array) -> pa.Array:
        items = self.value(schema.items or ConnectSchema("float", optional=False), values.values)
        joined = pc.binary_join(pa.ListArray.from_arrays(values.offsets, items), b"")
        counts = pc.list_value_length(values)
        # One block with all items, where there are any, and a count of 0 at the end.
        blocks = _joined(_varints(numbers_of(counts), branch, values), joined)
        end = pc.if_else(pc.greater(counts, 0), _NULL, b"")
        return _joined(blocks, end)


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    return pc.binary_join_element_wise(*parts, b"")


def _sizes(values: pa.Array) -> Numbers:
    return numbers_of(pc.binary_length(values))


def _fixed(rows: Bytes, branch: int | None, like: pa.Array) -> pa.Array:
    if branch is not None:
        rows = np.concatenate([np.full((len(rows), 1), branch, np.uint8), rows], axis=1)
    return binary_array(rows, np.ones(rows.shape, np.bool_), like)


def _varints(numbers: Numbers, branch: int | None, like: pa.Array) -> pa.Array:
    """Return numbers as Avro's int or long, after the branch."""
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    largest = int(zigzag.max(initial=0))
    width = max(1, -(-largest.bit_length() // 7))
    first = 0 if branch is None else 1
    rows = np.zeros((len(numbers), first + width), np.uint8)
    kept = np.ones(rows.shape, np.bool_)
    if branch is not None:
        rows[:, 0] = branch
    for i in range(width):
        rest = zigzag >> np.uint64(7 * i)
        more = rest > 0x7F
        rows[:, first + i] = (rest & np.uint64(0x7F)) | (more.astype(np.uint64) << np.uint64(7))
        if i + 1 < width:
            kept[:, first + i + 1] = more
    return binary_array(rows, kept, like)
