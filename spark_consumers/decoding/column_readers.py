"""Which builder, reader or writer takes the values of a table's column."""

import re

import pyarrow as pa

from spark_consumers.decoding.output_columns import arrow_type
from spark_consumers.errors import ShapeConflict
from spark_consumers.row_columns import arrow_values as av
from spark_consumers.row_columns import json_values as jv
from spark_consumers.row_columns.builders import (
    BooleanBuilder,
    ColumnBuilder,
    DecimalBuilder,
    DoubleBuilder,
    FloatBuilder,
    Int32Builder,
    Int64Builder,
    StructBuilder,
    TextBuilder,
    TextListBuilder,
)
from topics.records.table_shape import UNSIGNED_LONG_BYTES, Column, ValueKind

_DECIMALS = re.compile(r"\(([0-6])\)")

# Kinds that a query's column accepts besides its own, because no value changes its meaning.
_WIDER: dict[ValueKind, frozenset[ValueKind]] = {
    ValueKind.LONG: frozenset({ValueKind.INT, ValueKind.YEAR}),
    ValueKind.INT: frozenset({ValueKind.YEAR}),
    ValueKind.DOUBLE: frozenset({ValueKind.FLOAT}),
    ValueKind.STRING: frozenset({ValueKind.ENUM, ValueKind.JSON}),
}


def builder_for(kind: pa.DataType) -> ColumnBuilder:  # only for the types of output_columns
    """Return the builder of an Arrow type."""
    if pa.types.is_struct(kind):
        return StructBuilder([builder_for(kind.field(i).type) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return TextListBuilder()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return TextBuilder()
    if pa.types.is_decimal(kind):
        return DecimalBuilder()
    if pa.types.is_boolean(kind):
        return BooleanBuilder()
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return Int32Builder()
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind):
        return Int64Builder()
    if pa.types.is_float32(kind):
        return FloatBuilder()
    if pa.types.is_float64(kind):
        return DoubleBuilder()
    raise ValueError(f"no builder for {kind}")


def skipper_for(column: Column) -> av.ValueReader:
    """Return a reader that skips the values of a column."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return av.FixedSkipper(UNSIGNED_LONG_BYTES)
        case ValueKind.FLOAT:
            return av.FixedSkipper(4)
        case ValueKind.DOUBLE:
            return av.FixedSkipper(8)
        case (
            ValueKind.DECIMAL | ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON | ValueKind.BYTES
        ):
            return av.TextSkipper()
        case ValueKind.SET:
            return av.TextListSkipper()
        case _:
            return av.VarintSkipper()


def reader_for(column: Column, into: ColumnBuilder) -> av.ValueReader:
    """Return a reader of a column's values into a builder that fits them (see `check_fits`)."""
    match into:
        case Int32Builder():
            return av.Int32Reader(into)
        case Int64Builder():
            return av.Int64Reader(into)
        case FloatBuilder():
            return av.FloatReader(into)
        case DoubleBuilder():
            return av.DoubleReader(into, is_float=column.kind is ValueKind.FLOAT)
        case DecimalBuilder():
            is_bytes = column.kind is ValueKind.DECIMAL
            return av.DecimalReader(into, 0 if is_bytes else UNSIGNED_LONG_BYTES)
        case TextBuilder():
            if column.kind is ValueKind.DECIMAL:
                return av.DecimalTextReader(into, column.scale)
            return av.TextReader(into)
        case TextListBuilder():
            return av.TextListReader(into)
        case _:
            raise ValueError(f"no reader for {column} into {into}")


def json_value_for(column: Column) -> jv.JsonValue:
    """Return the JSON writer of a column's values, as in `topics.records.event_json`."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return jv.JsonUnsigned()
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return jv.JsonFloat(is_double=column.kind is ValueKind.DOUBLE)
        case ValueKind.DECIMAL:
            return jv.JsonDecimal(column.scale)
        case ValueKind.STRING | ValueKind.ENUM:
            return jv.JsonString()
        case ValueKind.JSON:
            return jv.JsonVerbatim()
        case ValueKind.BYTES:
            return jv.JsonBase64()
        case ValueKind.DATE:
            return jv.JsonDate()
        case ValueKind.TIME:
            return jv.JsonTime(_declared_decimals(column))
        case ValueKind.DATETIME | ValueKind.TIMESTAMP:
            is_utc = column.kind is ValueKind.TIMESTAMP
            return jv.JsonMoment(is_utc=is_utc, decimals=_declared_decimals(column))
        case ValueKind.SET:
            return jv.JsonStringList()
        case ValueKind.INT | ValueKind.LONG | ValueKind.YEAR | ValueKind.BIT:
            return jv.JsonNumber()


def _declared_decimals(column: Column) -> int:
    """Return the fractional digits of the declared type: 3 for `datetime(3)`."""
    declared = _DECIMALS.search(column.sql_type)
    return 0 if declared is None else int(declared[1])


def check_fits(column: Column, target: Column, where: str) -> None:
    """Raise ShapeConflict unless `target` can hold every value of `column` unchanged."""
    fits = column.kind is target.kind or column.kind in _WIDER.get(target.kind, ())
    if fits and target.kind is ValueKind.DECIMAL:
        is_text = pa.types.is_string(arrow_type(target))
        fits = is_text or (column.scale == target.scale and column.precision <= target.precision)
    if not fits:
        raise ShapeConflict(
            f"{where}: column '{column.name}' is {_type_name(column)} there, but "
            f"{_type_name(target)} in this query: start after the type was changed, or read the "
            f"table without option table (as JSON text)"
        )


def _type_name(column: Column) -> str:
    return f"{column.sql_type} ({arrow_type(column)})"
