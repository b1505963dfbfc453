"""Maps a registered schema to what the record loop does with each field of its records."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from spark_consumers.decoding.column_readers import (
    check_fits,
    json_value_for,
    reader_for,
    skipper_for,
)
from spark_consumers.decoding.output_columns import IMAGES, PRESENT_OP, OutputColumns
from spark_consumers.errors import ShapeConflict
from spark_consumers.row_columns.arrow_values import ValueReader
from spark_consumers.row_columns.builders import ColumnBuilder, StructBuilder, TextBuilder
from spark_consumers.row_columns.images import (
    Image,
    JsonImage,
    KeyColumns,
    NullCheck,
    RowEndColumn,
    SkippedImage,
    TypedImage,
)
from spark_consumers.row_columns.records import ROW, SKIP, STATEMENT, Plan
from topics.errors import UnknownEnvelope
from topics.records.table_shape import TYPES_BY_ENVELOPE, Column, TableShape, ValueKind, shape_of

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
        schema = json.loads(self.text_of(schema_id))
        if schema.get("envelope") not in TYPES_BY_ENVELOPE:
            raise UnknownEnvelope(
                f"schema {schema_id} has envelope version {schema.get('envelope')}; this release "
                f"reads {' and '.join(map(str, TYPES_BY_ENVELOPE))}: upgrade the reader"
            )
        shape = shape_of(schema)
        if shape is None:
            return self._statement_plan(schema_id, schema)
        target = self.output.shape
        if target is not None and (shape.database, shape.table) != (target.database, target.table):
            return _plan(SKIP, schema_id)
        names = [column.name for column in shape.columns]
        key = self._key_columns(shape)
        row_end = self._row_end_column(shape)
        if key is None and row_end is None and not set(IMAGES) & set(self.builders):
            return _plan(ROW, schema_id, names)
        images: list[Image | None] = [self._image(image, shape, schema_id) for image in IMAGES]
        passed = SkippedImage([skipper_for(c) for c in shape.columns])
        return _plan(ROW, schema_id, names, images, key, passed=passed, row_end=row_end)

    def _statement_plan(self, schema_id: int, schema: dict[str, object]) -> Plan:
        fields = schema["fields"]
        if not isinstance(fields, list) or fields[-1]["name"] != "statement":
            raise UnknownEnvelope(
                f"schema {schema_id} describes neither rows nor statements: upgrade the reader"
            )
        no_columns = NullCheck([], [], tells_absent=True, tells_dates=True)
        images: list[Image | None] = []
        for builder in (self.builders.get(image) for image in IMAGES):
            if isinstance(builder, TextBuilder):
                images.append(JsonImage([], [], builder))
            elif isinstance(builder, StructBuilder):
                images.append(TypedImage([], [], builder, no_columns))
            else:
                images.append(None)
        target = self.output.shape
        table = None if target is None else (target.database.encode(), target.table.encode())
        return _plan(STATEMENT, schema_id, images=images, table=table)

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
            tells_dates="off_calendar" in self.builders,
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


def _plan(
    kind: int,
    schema_id: int,
    names: list[str] | None = None,
    images: list[Image | None] | None = None,
    key: KeyColumns | None = None,
    *,
    passed: SkippedImage | None = None,
    row_end: RowEndColumn | None = None,
    table: tuple[bytes, bytes] | None = None,
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
        row_end=row_end,
        table=table,
    )
