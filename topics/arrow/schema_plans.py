"""Maps a registered schema to the reader, writer or builder of each field of its records."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from topics.arrow.columns.arrow_values import ValueReader, reader_for, skipper_for
from topics.arrow.columns.builders import (
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
from topics.arrow.columns.filler import ROW, SKIP, STATEMENT, Plan
from topics.arrow.columns.images import (
    Image,
    JsonImage,
    KeyColumns,
    NullCheck,
    RowEndColumn,
    SkippedImage,
    TypedImage,
)
from topics.arrow.columns.json_values import json_value_for
from topics.arrow.output_columns import IMAGES, PRESENT_OP, OutputColumns, arrow_type
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind, known_schema

# The columns that are made of a row's primary key.
_KEYS = {"key", "old_key", "key_hash", "old_key_hash"}


@dataclass(frozen=True, slots=True)
class PlanMaker:
    """Builds the plan of a schema id: which builder each field of a record goes to."""

    output: OutputColumns
    builders: dict[str, ColumnBuilder]
    text_of: Callable[[int], str]

    def plan_of(self, schema_id: int) -> Plan:
        """Return the plan. Raises UnknownEnvelope and ShapeConflict."""
        schema = known_schema(self.text_of(schema_id), schema_id, "a shard log")
        plan = partial(Plan, schema_id=schema_id, envelope_version=schema.envelope_version)
        shape, target = schema.shape, self.output.shape
        if shape is None:
            before, after = (self._no_image(image) for image in IMAGES)
            table = None if target is None else (target.database.encode(), target.table.encode())
            return plan(kind=STATEMENT, names=[], before=before, after=after, table=table)
        if target is not None and (shape.database, shape.table) != (target.database, target.table):
            return plan(kind=SKIP, names=[])
        names = [column.name for column in shape.columns]
        key = self._key_columns(shape)
        row_end = self._row_end_column(shape)
        if key is None and row_end is None and not set(IMAGES) & set(self.builders):
            return plan(kind=ROW, names=names)
        before, after = (self._image(image, shape, schema_id) for image in IMAGES)
        passed = SkippedImage([skipper_for(c) for c in shape.columns])
        return plan(
            kind=ROW,
            names=names,
            before=before,
            after=after,
            key=key,
            passed=passed,
            row_end=row_end,
        )

    def _no_image(self, image: str) -> Image | None:
        """Return the column of an image, for records without images."""
        builder = self.builders.get(image)
        if isinstance(builder, TextBuilder):
            return JsonImage([], [], builder)
        if isinstance(builder, StructBuilder):
            no_columns = NullCheck([], [], tells_absent=True, tells_dates=True)
            return TypedImage([], [], builder, no_columns)
        return None

    def _key_columns(self, shape: TableShape) -> KeyColumns | None:
        if not shape.primary_key or not _KEYS & set(self.builders):
            return None
        return KeyColumns(
            [skipper_for(c) for c in shape.columns],
            list(shape.primary_key),
            [json_value_for(shape.columns[i]) for i in shape.primary_key],
        )

    def _row_end_column(self, shape: TableShape) -> RowEndColumn | None:
        if shape.row_end is None or PRESENT_OP not in self.builders:
            return None
        skippers = [skipper_for(c) for c in shape.columns]
        is_counted = shape.columns[shape.row_end].kind is ValueKind.UNSIGNED_LONG
        return RowEndColumn(skippers, shape.row_end, is_counted=is_counted)

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
        nulls = NullCheck(
            [column.name for column in shape.columns],
            [column.name in wanted for column in shape.columns],
            tells_absent="absent" in self.builders,
            tells_dates="invalid_dates" in self.builders,
        )
        readers: list[ValueReader] = []
        for column in shape.columns:
            if column.name in wanted:
                target, builder = wanted.pop(column.name)
                check_fits(column, target, where)
                readers.append(reader_for(column, builder))
            else:
                self._check_known(column, schema_id, where)
                readers.append(skipper_for(column))
        return TypedImage(readers, [builder for _, builder in wanted.values()], into, nulls)

    def _check_known(self, column: Column, schema_id: int, where: str) -> None:
        """Refuse a column that was added after the query chose its columns."""
        target = self.output.shape
        if target is None or schema_id <= self.output.shape_schema_id:
            return
        if column.name not in {c.name for c in target.columns}:
            raise ShapeConflict(
                f"{where}: column '{column.name}' was added after this query chose its columns "
                f"(schema {self.output.shape_schema_id}): restart the query to read it"
            )


# Kinds that a query's column accepts besides its own, because no value changes its meaning.
_WIDER: dict[ValueKind, frozenset[ValueKind]] = {
    ValueKind.LONG: frozenset({ValueKind.INT, ValueKind.YEAR}),
    ValueKind.INT: frozenset({ValueKind.YEAR}),
    ValueKind.DOUBLE: frozenset({ValueKind.FLOAT}),
    ValueKind.STRING: frozenset({ValueKind.ENUM, ValueKind.JSON}),
}


_BUILDERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[], ColumnBuilder]], ...] = (
    (pa.list_(pa.string()).equals, TextListBuilder),
    (pa.types.is_string, TextBuilder),
    (pa.types.is_binary, TextBuilder),
    (pa.types.is_decimal, DecimalBuilder),
    (pa.types.is_boolean, BooleanBuilder),
    (pa.types.is_int32, Int32Builder),
    (pa.types.is_date32, Int32Builder),
    (pa.types.is_int64, Int64Builder),
    (pa.types.is_timestamp, Int64Builder),
    (pa.types.is_float32, FloatBuilder),
    (pa.types.is_float64, DoubleBuilder),
)


def builder_for(kind: pa.DataType) -> ColumnBuilder:  # only for the types of output_columns
    """Return the builder of an Arrow type."""
    if pa.types.is_struct(kind):
        return StructBuilder([builder_for(kind.field(i).type) for i in range(kind.num_fields)])
    for is_of, builder in _BUILDERS:
        if is_of(kind):
            return builder()
    raise ValueError(f"no builder for {kind}")


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
