"""The row of a table version and its primary key, as structs of Connect values."""

import pyarrow as pa

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope.codec import Codec
from spark_consumers.table_topics.envelope.column_types import connect_type
from spark_consumers.table_topics.envelope.column_values import converter
from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from topics.records.table_shape import TableShape


class RowColumns:
    """Converts row images. UsageError if the table has no primary key."""

    def __init__(self, shape: TableShape, options: EnvelopeOptions) -> None:
        table = f"{shape.database}.{shape.table}"
        if not shape.primary_key:
            raise UsageError(
                f"table {table} has no primary key, so its messages would have no key: leave it out"
            )
        self.topic = f"{options.prefix}.{table}"
        types = [connect_type(column, options) for column in shape.columns]
        self._converters = [
            converter(column, to, f"{table}, column {column.name} ({column.sql_type})")
            for column, to in zip(shape.columns, types, strict=True)
        ]
        self.fields = tuple(
            ConnectField(column.name, to) for column, to in zip(shape.columns, types, strict=True)
        )
        self._key_columns = shape.primary_key
        self.key = ConnectSchema(
            "struct",
            optional=False,
            name=f"{self.topic}.Key",
            fields=tuple(
                ConnectField(self.fields[i].name, types[i].required()) for i in shape.primary_key
            ),
        )

    def convert(self, image: pa.StructArray) -> list[pa.Array]:
        """Return the columns of row images as Connect values; a missing image has nulls."""
        columns = image.flatten()
        return [convert(column) for convert, column in zip(self._converters, columns, strict=True)]

    def keys(self, codec: Codec, columns: list[pa.Array]) -> pa.Array:
        """Return the encoded keys of converted row images."""
        fields = self.key.fields
        chosen = (columns[i] for i in self._key_columns)
        values = [codec.value(f.schema, v) for f, v in zip(fields, chosen, strict=True)]
        return codec.struct(fields, values)
