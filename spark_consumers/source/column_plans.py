"""From a registered schema to what the record loop does with each of its columns."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from event_token.errors import Halt, UsageError
from spark_consumers.row_columns import json_values as jv
from spark_consumers.row_columns import typed
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
from spark_consumers.row_columns.images import (
    Image,
    JsonImage,
    KeyColumns,
    SkippedImage,
    TypedImage,
)
from spark_consumers.row_columns.records import ROW, SKIP, STATEMENT, Plan
from spark_consumers.source.output_columns import IMAGES, OutputColumns, arrow_type
from topics.records.table_shape import (
    ENVELOPE_VERSION,
    UNSIGNED_LONG_BYTES,
    Column,
    TableShape,
    ValueKind,
    shape_of,
)

_DECIMALS = re.compile(r"\(([0-6])\)")

# What a query's column takes besides its own kind: no value changes its meaning on the way.
_WIDER: dict[ValueKind, frozenset[ValueKind]] = {
    ValueKind.LONG: frozenset({ValueKind.INT, ValueKind.YEAR}),
    ValueKind.INT: frozenset({ValueKind.YEAR}),
    ValueKind.DOUBLE: frozenset({ValueKind.FLOAT}),
    ValueKind.STRING: frozenset({ValueKind.ENUM, ValueKind.JSON}),
}


class UnknownSchema(Halt):
    """Raised on records of a kind that this release does not know."""


class ShapeConflict(UsageError):  # noqa: N818 - named by what is at odds
    """Raised where an older or newer version of a table does not fit the query's columns."""


def builder_for(kind: pa.DataType) -> ColumnBuilder:  # the types of output_columns alone
    """A column in the making for an Arrow type."""
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


def skipper_for(column: Column) -> typed.ValueReader:
    """What passes a column's values."""
    match column.kind:
        case ValueKind.UNSIGNED_LONG | ValueKind.BIT64:
            return typed.FixedSkipper(UNSIGNED_LONG_BYTES)
        case ValueKind.FLOAT:
            return typed.FixedSkipper(4)
        case ValueKind.DOUBLE:
            return typed.FixedSkipper(8)
        case (
            ValueKind.DECIMAL | ValueKind.STRING | ValueKind.ENUM | ValueKind.JSON | ValueKind.BYTES
        ):
            return typed.TextSkipper()
        case ValueKind.SET:
            return typed.TextListSkipper()
        case _:
            return typed.VarintSkipper()


def reader_for(column: Column, into: ColumnBuilder) -> typed.ValueReader:
    """What takes a column's values into a builder that fits them (see `check_fits`)."""
    match into:
        case Int32Builder():
            return typed.Int32Reader(into)
        case Int64Builder():
            return typed.Int64Reader(into)
        case FloatBuilder():
            return typed.FloatReader(into)
        case DoubleBuilder():
            return typed.DoubleReader(into, is_float=column.kind is ValueKind.FLOAT)
        case DecimalBuilder():
            is_bytes = column.kind is ValueKind.DECIMAL
            return typed.DecimalReader(into, 0 if is_bytes else UNSIGNED_LONG_BYTES)
        case TextBuilder():
            if column.kind is ValueKind.DECIMAL:
                return typed.DecimalTextReader(into, column.scale)
            return typed.TextReader(into)
        case TextListBuilder():
            return typed.TextListReader(into)
        case _:
            raise ValueError(f"no reader for {column} into {into}")


def json_value_for(column: Column) -> jv.JsonValue:
    """What writes a column's values as JSON, as `topics.records.event_json` has them."""
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
    """Digits of the second in `datetime(3)`."""
    declared = _DECIMALS.search(column.sql_type)
    return 0 if declared is None else int(declared[1])


def check_fits(column: Column, target: Column, where: str) -> None:
    """Raise ShapeConflict unless every value of `column` is one of `target` in the same sense."""
    fits = column.kind is target.kind or column.kind in _WIDER.get(target.kind, ())
    if fits and target.kind is ValueKind.DECIMAL:
        is_text = pa.types.is_string(arrow_type(target))
        fits = is_text or (column.scale == target.scale and column.precision <= target.precision)
    if not fits:
        raise ShapeConflict(
            f"{where}: column '{column.name}' is {_type_name(column)} there and "
            f"{_type_name(target)} in this query; read the table without option table (JSON "
            f"text), or start behind the change of type"
        )


def _type_name(column: Column) -> str:
    return f"{column.sql_type} ({arrow_type(column)})"


@dataclass(frozen=True, slots=True)
class PlanMaker:
    """Makes the plan of a schema id, with the columns' builders as targets."""

    output: OutputColumns
    builders: dict[str, ColumnBuilder]
    text_of: Callable[[int], str]

    def plan_of(self, schema_id: int) -> Plan:
        """Return the plan. UnknownSchema, ShapeConflict: see there."""
        schema = json.loads(self.text_of(schema_id))
        if schema.get("envelope") != ENVELOPE_VERSION:
            raise UnknownSchema(
                f"schema {schema_id} has envelope version {schema.get('envelope')}, this release "
                f"reads {ENVELOPE_VERSION}: update the reader"
            )
        shape = shape_of(schema)
        if shape is None:
            return self._statement_plan(schema_id, schema)
        target = self.output.shape
        if target is not None and (shape.database, shape.table) != (target.database, target.table):
            return _plan(SKIP, schema_id)
        names = [column.name for column in shape.columns]
        key = self._key_columns(shape)
        if key is None and not set(IMAGES) & set(self.builders):
            return _plan(ROW, schema_id, names)
        images: list[Image | None] = [self._image(image, shape, schema_id) for image in IMAGES]
        passed = SkippedImage([skipper_for(c) for c in shape.columns])
        return _plan(ROW, schema_id, names, images, key, passed=passed)

    def _statement_plan(self, schema_id: int, schema: dict[str, object]) -> Plan:
        fields = schema["fields"]
        if not isinstance(fields, list) or fields[-1]["name"] != "statement":
            raise UnknownSchema(
                f"schema {schema_id} describes neither rows nor statements: update the reader"
            )
        if self.output.shape is not None:
            # A statement belongs to no table: the log does not parse SQL.
            return _plan(SKIP, schema_id)
        images: list[Image | None] = [
            JsonImage([], [], builder) if isinstance(builder, TextBuilder) else None
            for builder in (self.builders.get(image) for image in IMAGES)
        ]
        return _plan(STATEMENT, schema_id, images=images)

    def _key_columns(self, shape: TableShape) -> KeyColumns | None:
        if not shape.primary_key or not {"key", "old_key"} & set(self.builders):
            return None
        return KeyColumns(
            [skipper_for(c) for c in shape.columns],
            list(shape.primary_key),
            [json_value_for(shape.columns[i]) for i in shape.primary_key],
        )

    def _image(self, image: str, shape: TableShape, schema_id: int) -> Image:
        into = self.builders.get(image)
        if into is None:
            return SkippedImage([skipper_for(c) for c in shape.columns])
        if isinstance(into, StructBuilder):
            return self._typed_image(image, into, shape, schema_id)
        if not isinstance(into, TextBuilder):
            raise TypeError(f"no image goes into {into}")
        names = [(json.dumps(c.name, ensure_ascii=False) + ":").encode() for c in shape.columns]
        return JsonImage(names, [json_value_for(c) for c in shape.columns], into)

    def _typed_image(
        self, image: str, into: StructBuilder, shape: TableShape, schema_id: int
    ) -> TypedImage:
        where = f"{shape.database}.{shape.table}, schema {schema_id}"
        wanted = {
            column.name: (column, builder)
            for column, builder in zip(
                self.output.struct_columns(image), into.children, strict=True
            )
        }
        readers: list[typed.ValueReader] = []
        for column in shape.columns:
            if column.name in wanted:
                target, builder = wanted.pop(column.name)
                check_fits(column, target, where)
                readers.append(reader_for(column, builder))
            else:
                self._check_known(column, schema_id, where)
                readers.append(skipper_for(column))
        return TypedImage(readers, [builder for _, builder in wanted.values()], into)

    def _check_known(self, column: Column, schema_id: int, where: str) -> None:
        """Refuse a column that was added after the query's columns were fixed."""
        target = self.output.shape
        if target is None or schema_id <= self.output.shape_schema_id:
            return
        if column.name not in {c.name for c in target.columns}:
            raise ShapeConflict(
                f"{where}: column '{column.name}' was added after this query's columns were fixed "
                f"(schema {self.output.shape_schema_id}); start the query again to read it"
            )


def _plan(
    kind: int,
    schema_id: int,
    names: list[str] | None = None,
    images: list[Image | None] | None = None,
    key: KeyColumns | None = None,
    *,
    passed: SkippedImage | None = None,
) -> Plan:
    before, after = images or (None, None)
    return Plan(
        kind=kind,
        schema_id=schema_id,
        names=names or [],
        before=before,
        after=after,
        key=key,
        passed=passed,
    )
