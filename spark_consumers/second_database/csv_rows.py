"""Arrow columns as the CSV that COPY reads: each value as text, NULL as an empty field. Pure."""

import io
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

# MySQL's TIME in microseconds has 13 digits; an int64 at most 19.
_TIME_DIGITS = 19
_TIME_SCALE = 6


def csv_of(rows: pa.Table) -> bytes:
    """Return the rows as CSV without a header. Values are quoted, NULL is an empty field."""
    texts = pa.table([_plain(column) for column in rows.columns], names=rows.column_names)
    sink = io.BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    # In front of other batches, Arrow's writer puts zero bytes for one without rows.
    batches = [batch for batch in texts.to_batches() if batch.num_rows]
    csv.write_csv(pa.Table.from_batches(batches, texts.schema), sink, options)
    return sink.getvalue()


def _plain(column: pa.ChunkedArray) -> Any:
    """Return a column of a type that Arrow writes as CSV in PostgreSQL's form."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return hex_text(column)
    if pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if pa.types.is_list(kind):
        return array_text(column)
    return column


def hex_text(column: pa.ChunkedArray, begin: str = "\\x") -> pa.Array:
    r"""Return binary values as `\x0a0b`, all at once; `begin`: what each begins with."""
    chunks = [chunk.cast(pa.large_binary()) for chunk in column.chunks]
    whole = pa.concat_arrays(chunks) if chunks else pa.array([], pa.large_binary())
    offsets = pa.Array.from_buffers(
        pa.int64(), len(whole) + 1, [None, whole.buffers()[1]], offset=whole.offset
    )
    bounds = offsets.to_numpy(zero_copy_only=False)
    digits = bytes(whole.buffers()[2] or b"")[bounds[0] : bounds[-1]].hex().encode()
    doubled = pa.array((bounds - bounds[0]) * 2, pa.int64())
    texts = pa.Array.from_buffers(
        pa.large_string(), len(whole), [None, doubled.buffers()[1], pa.py_buffer(digits)]
    )
    prefixed = pc.binary_join_element_wise(
        pa.scalar(begin, pa.large_string()), texts, pa.scalar("", pa.large_string())
    )
    return pc.if_else(whole.is_valid(), prefixed, pa.scalar(None, pa.large_string()))


def array_text(column: pa.ChunkedArray) -> pa.Array:
    """Return lists of texts as PostgreSQL's `{"a","b"}`."""
    found: list[str | None] = []
    for values in column.to_pylist():
        if values is None:
            found.append(None)
            continue
        quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
        found.append("{" + ",".join(f'"{value}"' for value in quoted) + "}")
    return pa.array(found, pa.string())


def seconds_text(micros: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return microseconds (int64) as seconds with six digits: `-3600.000001`."""
    scaled = pa.decimal128(_TIME_DIGITS + _TIME_SCALE, _TIME_SCALE)
    chunks = [
        pa.Array.from_buffers(scaled, len(whole), whole.buffers(), offset=whole.offset)
        for whole in (chunk.cast(pa.decimal128(_TIME_DIGITS, 0)) for chunk in micros.chunks)
    ]
    return pa.chunked_array(chunks, scaled).cast(pa.string())
