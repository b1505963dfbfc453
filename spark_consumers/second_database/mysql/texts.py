"""Arrow columns as the texts that MySQL reads: a file for LOAD DATA, or rows for INSERT. Pure."""

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.evolution import TEXT_SUFFIX
from spark_consumers.second_database.csv_rows import hex_text
from topics.records.table_shape import Column, TableShape, ValueKind

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
