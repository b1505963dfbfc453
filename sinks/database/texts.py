"""Arrow columns as the texts that databases read, and values that they cannot hold. Pure.

PostgreSQL reads CSV, MySQL and MariaDB the file of LOAD DATA or the rows of an INSERT.
"""

import io
import re
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sinks.errors import BadValue
from sinks.rule.columns import TEXT_SUFFIX
from sinks.rule.homes import KEY, SEQ, SHARD
from topics.records.table_shape import Column, TableShape, ValueKind

# MySQL's TIME in microseconds has 13 digits; an int64 at most 19.
_TIME_DIGITS = 19
_TIME_SCALE = 6


def csv_of(rows: pa.Table) -> bytes:
    """Return the rows as CSV without a header. Values are quoted, NULL is an empty field."""
    texts = pa.table([_csv_column(column) for column in rows.columns], names=rows.column_names)
    sink = io.BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    # In front of other batches, Arrow's writer puts zero bytes for one without rows.
    batches = [batch for batch in texts.to_batches() if batch.num_rows]
    csv.write_csv(pa.Table.from_batches(batches, texts.schema), sink, options)
    return sink.getvalue()


def _csv_column(column: pa.ChunkedArray) -> Any:
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


_TEXT = pa.large_string()
_SECOND_US = 1_000_000
_YEAR_DIGITS = 4
_DATES = (ValueKind.DATE, ValueKind.DATETIME, ValueKind.TIMESTAMP)


def is_bytes(column: pa.ChunkedArray) -> bool:
    """Tell whether a column has bytes, which `plain_texts` gives as hexadecimal digits."""
    return bool(pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type))


def plain_texts(rows: pa.Table, shape: TableShape) -> list[pa.Array]:
    """Return each column as texts, NULL as null; neither quoted nor escaped."""
    columns = {column.name: column for column in shape.columns}
    found = {
        name: _plain(rows[name].combine_chunks(), columns.get(name)).cast(_TEXT)
        for name in rows.column_names
    }
    for name, column in columns.items():
        # These databases can hold the invalid dates themselves.
        if column.kind in _DATES and (invalid := found.get(name + TEXT_SUFFIX)) is not None:
            found[name] = pc.coalesce(invalid, found[name])
    return list(found.values())


def _plain(values: pa.Array, column: Column | None) -> pa.Array:
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return hex_text(pa.chunked_array([values]), "")
    if pa.types.is_list(kind):
        return pc.binary_join(values, ",")
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8())
    if pa.types.is_timestamp(kind):
        return values.cast(pa.timestamp("us"))
    if pa.types.is_float32(kind):
        # The shortest text of a FLOAT would be rounded twice, by way of a DOUBLE.
        return values.cast(pa.float64())
    if column is not None and column.kind is ValueKind.TIME:
        return _time(values)
    if column is not None and column.kind is ValueKind.YEAR:
        # `0` is the year 2000.
        return pc.utf8_lpad(values.cast(pa.string()), _YEAR_DIGITS, "0")
    return values


def _time(micros: pa.Array) -> pa.Array:
    """Return microseconds (int64) as `-838:59:59.000001`."""
    length = pc.abs(micros)
    seconds = pc.divide(length, _SECOND_US)
    parts = (
        (pc.divide(seconds, 3600), 2),
        (_rest(pc.divide(seconds, 60), 60), 2),
        (_rest(seconds, 60), 2),
        (_rest(length, _SECOND_US), 6),
    )
    hours, minutes, whole, fraction = (
        pc.utf8_lpad(part.cast(pa.string()), digits, "0") for part, digits in parts
    )
    sign = pc.if_else(pc.less(micros, 0), "-", "")
    clock = pc.binary_join_element_wise(hours, minutes, whole, ":")
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, clock, ""), fraction, ".")


def _rest(values: pa.Array, divisor: int) -> pa.Array:
    return pc.subtract(values, pc.multiply(pc.divide(values, divisor), divisor))


def file_of(texts: list[pa.Array]) -> memoryview:
    r"""Return rows as lines of columns with tabs between them; NULL is `\N`."""
    columns = [pc.fill_null(_escaped(texts_, "\t", "\n"), "\\N") for texts_ in texts]
    lines = _joined(columns, "\t")
    ended = _joined([lines, pa.scalar("", _TEXT)], "\n")
    return memoryview(ended.buffers()[2] or b"")[: ended.nbytes and _offsets(ended)[-1]]


def tuples_of(texts: list[pa.Array], binary: Collection[int], raw: Collection[int]) -> pa.Array:
    """Return each row as `('...',X'...',NULL)`.

    `binary`: the columns of hexadecimal digits, `raw`: those that are written without quotes.
    """
    columns = []
    for i, column in enumerate(texts):
        quoted = column
        if i not in raw:
            begin = "X'" if i in binary else "'"
            quoted = _between(column if i in binary else _escaped(column, "'"), begin, "'")
        columns.append(pc.fill_null(quoted, "NULL"))
    return _between(_joined(columns, ","), "(", ")")


def chunks_of(rows: pa.Array, size_max: int) -> list[tuple[int, int]]:
    """Divide texts into runs (begin, end) of at most `size_max` bytes, or of one text."""
    offsets = _offsets(rows)
    found, begin = [], 0
    while begin < len(rows):
        limit = offsets[begin] + size_max
        end = max(int(np.searchsorted(offsets, limit, side="right")) - 1, begin + 1)
        # One byte for each comma.
        while end > begin + 1 and offsets[end] - offsets[begin] + (end - begin) > size_max:
            end = begin + (end - begin + 1) // 2
        found.append((begin, end))
        begin = end
    return found


def _escaped(column: pa.Array, *characters: str) -> pa.Array:
    for character in ("\\", *characters):
        if pc.any(pc.match_substring(column, character)).as_py():
            column = pc.replace_substring(column, character, "\\" + character)
    return column


def _between(column: pa.Array, begin: str, end: str) -> pa.Array:
    first, last = pa.scalar(begin, _TEXT), pa.scalar(end, _TEXT)
    return pc.binary_join_element_wise(first, column, last, pa.scalar("", _TEXT))


def _joined(columns: list[pa.Array | pa.Scalar], separator: str) -> pa.Array:
    return pc.binary_join_element_wise(*columns, pa.scalar(separator, _TEXT))


def _offsets(texts: pa.Array) -> "np.typing.NDArray[np.int64]":
    buffer = texts.buffers()[1]
    return np.frombuffer(buffer, np.int64, len(texts) + 1, texts.offset * 8)


NUL = "\0"
# What stands for it with `--nul-text replace`: U+FFFD, the replacement character.
REPLACEMENT = "\ufffd"


def place_of(rows: pa.Table, row: int) -> str:
    """Return key, shard and seq of a row for messages."""
    key, shard, seq = (rows[name][row].as_py() for name in (KEY, SHARD, SEQ))
    return f"key {key}, shard {shard}, seq {seq}"


# One character of a text in JSON, if it is written as an escape.
_ESCAPE = re.compile(r"\\(?:u0000|.)", re.DOTALL)
_NUL_ESCAPE = "\\u0000"


def without_nul(rows: pa.Table, *, replace: bool, json: Collection[str] = ()) -> pa.Table:
    """Return rows whose texts have no zero character, which PostgreSQL cannot hold.

    `json`: the columns of JSON, which has them as escapes. BadValue names the first one, unless
    they are to be replaced.
    """
    for i, name in enumerate(rows.column_names):
        column = rows[name]
        if name in json:
            rows = _with_json(rows, i, replace=replace)
            continue
        if not pa.types.is_string(column.type):
            continue
        has_nul = pc.fill_null(pc.match_substring(column, NUL), fill_value=False)
        if not pc.any(has_nul).as_py():
            continue
        if not replace:
            raise _has_nul(rows, pc.index(has_nul, value=True).as_py(), name)
        rows = rows.set_column(i, name, pc.replace_substring(column, NUL, REPLACEMENT))
    return rows


def _with_json(rows: pa.Table, i: int, *, replace: bool) -> pa.Table:
    name, column = rows.column_names[i], rows[i].combine_chunks()
    may_have = pc.fill_null(pc.match_substring(column, _NUL_ESCAPE), fill_value=False)
    if not pc.any(may_have).as_py():
        return rows
    texts = column.to_pylist()
    for row in pc.indices_nonzero(may_have).to_pylist():
        # `\\\\u0000` is a backslash and five characters.
        text = _ESCAPE.sub(lambda m: REPLACEMENT if m[0] == _NUL_ESCAPE else m[0], texts[row])
        if text != texts[row] and not replace:
            raise _has_nul(rows, row, name)
        texts[row] = text
    return rows.set_column(i, name, pa.array(texts, column.type))


def _has_nul(rows: pa.Table, row: int, name: str) -> BadValue:
    return BadValue(
        f"{place_of(rows, row)}, column {name}: the text has a zero character, which PostgreSQL "
        f"cannot store; --nul-text replace writes U+FFFD in its place"
    )
