"""Column values as Connect represents them: Arrow arrays in, Arrow arrays out.

An array of the result has the Arrow type of its Connect type: int16 to int64, bool, float32,
float64, string, binary, struct or list.
"""

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.row_columns.text import decimal_text
from spark_consumers.table_topics.envelope import column_types as types
from spark_consumers.table_topics.envelope.buffers import (
    binary_array,
    decimal_words,
    fit_64_bits,
    numbers_of,
    with_nulls_of,
)
from spark_consumers.table_topics.envelope.column_types import declared_number
from spark_consumers.table_topics.envelope.connect_schema import ConnectSchema
from spark_consumers.table_topics.errors import ValueDoesNotFit
from topics.records.table_shape import Column, ValueKind

Convert = Callable[[pa.Array], pa.Array]

_DAY_US: Final = 86_400_000_000
_PLAIN: Final = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_GEOMETRY_TYPE: Final = pa.struct([("wkb", pa.binary()), ("srid", pa.int32())])
_POINT_TYPE: Final = pa.struct(
    [("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary()), ("srid", pa.int32())]
)
# MySQL's own format: the SRID in four bytes, then WKB, here of one point in little-endian.
_SRID_BYTES: Final = 4
_POINT: Final = struct.Struct("<IBI2d")


def converter(column: Column, to: ConnectSchema, where: str) -> Convert:
    """Return the conversion of a column's values (`arrow_type(column)`) to a Connect type.

    `where`: the table and the column, for the message of ValueDoesNotFit.
    """
    match column.kind:
        case ValueKind.UNSIGNED_LONG if to.type == "int64":
            return lambda values: _signed(values, where)
        case ValueKind.DECIMAL | ValueKind.UNSIGNED_LONG:
            return _decimal(column, to)
        case ValueKind.SET:
            return lambda values: pc.binary_join(values, ",")
        case ValueKind.BIT | ValueKind.BIT64:
            bits = declared_number(column.sql_type)
            return _flag if bits == 1 else lambda values: _little_endian(values, (bits + 7) // 8)
        case ValueKind.DATE | ValueKind.TIME | ValueKind.DATETIME | ValueKind.TIMESTAMP:
            return _temporal(column, to)
        case ValueKind.BYTES if to.type == "struct":
            return _points if to.name == types.POINT else _geometries
        case ValueKind.BYTES if to.type == "array":
            return _vectors
        case _:
            return lambda values: values.cast(_PLAIN[to.type])


def _signed(values: pa.Array, where: str) -> pa.Array:
    words = decimal_words(values)
    found = with_nulls_of(pa.array(np.ascontiguousarray(words[:, 0])), values)
    # A decimal of a null may be anything.
    too_large = pc.and_(pa.array(words[:, 1] != words[:, 0] >> 63), values.is_valid())
    if pc.any(too_large).as_py():
        value = values.filter(too_large)[0]
        raise ValueDoesNotFit(
            f"{where}: {value} is beyond 2**63-1 and would become a negative number: write such "
            f"columns as decimals (--unsigned precise)"
        )
    return found


def _decimal(column: Column, to: ConnectSchema) -> Convert:
    scale = column.scale
    if to.type == "bytes":
        return _unscaled_bytes
    if to.type == "string":
        return lambda values: _decimal_text(values, scale)
    # By its text: Arrow's own conversion to double is not correctly rounded.
    return lambda values: _decimal_text(values, scale).cast(pa.float64())


def _unscaled_bytes(values: pa.Array) -> pa.Array:
    """Return the shortest big-endian two's complement, as Java's BigInteger gives it."""
    if pa.types.is_decimal(values.type):
        words = decimal_words(values)
        if fit_64_bits(words):
            low = np.ascontiguousarray(words[:, 0])
            magnitude = low ^ (low >> 63)
            sizes = np.ones(len(low), np.int64)
            for size in range(1, 8):
                sizes += magnitude >= 1 << (8 * size - 1)
            rows = low.astype(">i8").view(np.uint8).reshape(-1, 8)
            return binary_array(rows, np.arange(8) >= 8 - sizes[:, None], values)
    return pa.array([None if v is None else _shortest(v) for v in _unscaled(values)], pa.binary())


def _shortest(number: int) -> bytes:
    return number.to_bytes((number ^ (number >> 127)).bit_length() // 8 + 1, "big", signed=True)


def _unscaled(values: pa.Array) -> list[int | None]:
    """Return decimals (decimal128, or text where they have more digits) as integers."""
    if not pa.types.is_decimal(values.type):
        return [None if t is None else int(t.replace(".", "")) for t in values.to_pylist()]
    words = decimal_words(values)
    return [
        (high << 64) | (low & 0xFFFFFFFFFFFFFFFF) if valid else None
        for low, high, valid in zip(
            words[:, 0].tolist(), words[:, 1].tolist(), values.is_valid().to_pylist(), strict=True
        )
    ]


def _decimal_text(values: pa.Array, scale: int) -> pa.Array:
    """Return decimals with all digits of their scale, never with an exponent."""
    if not pa.types.is_decimal(values.type):
        return values
    words = decimal_words(values)
    if not fit_64_bits(words):
        texts = [None if v is None else decimal_text(v, scale).decode() for v in _unscaled(values)]
        return pa.array(texts, pa.string())
    low = pa.array(words[:, 0])
    text = pc.cast(low, pa.string())
    if scale:
        is_negative = pc.less(low, 0)
        digits = pc.utf8_lpad(pc.utf8_ltrim(text, "-"), scale + 1, "0")
        sign = pc.if_else(is_negative, "-", "")
        text = pc.binary_join_element_wise(
            sign,
            pc.utf8_slice_codeunits(digits, 0, -scale),
            ".",
            pc.utf8_slice_codeunits(digits, -scale),
            "",
        )
    return with_nulls_of(text, values)


def _flag(values: pa.Array) -> pa.Array:
    return pc.not_equal(values, 0)


def _little_endian(values: pa.Array, size: int) -> pa.Array:
    if pa.types.is_decimal(values.type):
        numbers = np.ascontiguousarray(decimal_words(values)[:, 0])
    else:
        numbers = numbers_of(values)
    rows = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    kept = np.broadcast_to(np.arange(8) < size, rows.shape)
    return binary_array(rows, kept, values)


def _temporal(column: Column, to: ConnectSchema) -> Convert:
    digits = declared_number(column.sql_type)
    match to.name:
        case types.ZONED_TIMESTAMP:
            return lambda values: _zoned(values, digits)
        case types.ISO_TIMESTAMP:
            return _iso_moment
        case types.DATE | types.CONNECT_DATE:
            return lambda values: values.cast(pa.int32())
        case types.ISO_DATE:
            return lambda values: pc.binary_join_element_wise(values.cast(pa.string()), "Z", "")
        case types.MICRO_TIME:
            return lambda values: values
        case types.CONNECT_TIME:
            return lambda values: pc.divide(_of_a_day(values), 1000).cast(pa.int32())
        case types.ISO_TIME:
            return _iso_time
        case types.MICRO_TIMESTAMP:
            return lambda values: values.cast(pa.int64())
        case _:
            return _milliseconds


def _milliseconds(values: pa.Array) -> pa.Array:
    # Rounded down, also before 1970.
    return with_nulls_of(pa.array(numbers_of(values) // 1000), values)


def _of_a_day(values: pa.Array) -> pa.Array:
    """Return the times that are times of a day; others, which a TIME may hold, become null."""
    fits = pc.and_(pc.greater_equal(values, 0), pc.less(values, _DAY_US))
    return pc.if_else(fits, values, pa.scalar(None, values.type))


def _zoned(values: pa.Array, digits: int) -> pa.Array:
    """Return moments as YYYY-MM-DDTHH:MM:SS[.ffffff]Z with the declared fractional digits."""
    text = values.cast(pa.timestamp("us")).cast(pa.string())
    clock = pc.utf8_slice_codeunits(text, 11, 20 + digits if digits else 19)
    return pc.binary_join_element_wise(_day(text), "T", clock, "Z", "")


def _iso_moment(values: pa.Array) -> pa.Array:
    """Return moments as YYYY-MM-DDTHH:MM:SS[.ffffff]Z without zeros at the end of a fraction."""
    text = values.cast(pa.timestamp("us")).cast(pa.string())
    clock = _without_zeros(pc.utf8_slice_codeunits(text, 11))
    return pc.binary_join_element_wise(_day(text), "T", clock, "Z", "")


def _iso_time(values: pa.Array) -> pa.Array:
    text = _of_a_day(values).cast(pa.time64("us")).cast(pa.string())
    return pc.binary_join_element_wise(_without_zeros(text), "Z", "")


def _day(text: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(text, 0, 10)


def _without_zeros(clock: pa.Array) -> pa.Array:
    """Shorten HH:MM:SS.ffffff."""
    return pc.utf8_rtrim(pc.utf8_rtrim(clock, "0"), ".")


def _geometries(values: pa.Array) -> pa.Array:
    return pa.array(
        [
            None if v is None else {"wkb": v[_SRID_BYTES:], "srid": _srid(v)}
            for v in values.to_pylist()
        ],
        _GEOMETRY_TYPE,
    )


def _points(values: pa.Array) -> pa.Array:
    found: list[dict[str, object] | None] = []
    for value in values.to_pylist():
        if value is None:
            found.append(None)
            continue
        _, _, _, x, y = _POINT.unpack(value)
        found.append({"x": x, "y": y, "wkb": value[_SRID_BYTES:], "srid": _srid(value)})
    return pa.array(found, _POINT_TYPE)


def _srid(value: bytes) -> int | None:
    return int.from_bytes(value[:_SRID_BYTES], "little") or None


def _vectors(values: pa.Array) -> pa.Array:
    lists = [None if v is None else np.frombuffer(v, "<f4") for v in values.to_pylist()]
    return pa.array(lists, pa.list_(pa.float32()))
