"""The row of a table version and its primary key, as structs of Connect values."""

import pyarrow as pa

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope.codec import Codec
from spark_consumers.table_topics.envelope.column_types import connect_type, keeps_values_apart
from spark_consumers.table_topics.envelope.column_values import converter
from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from spark_consumers.table_topics.errors import ValueDoesNotFit
from topics.records.table_shape import TableShape


class RowColumns:
    """Converts row images.

    UsageError if the table has no primary key, or one whose values would not be kept apart.
    """

    def __init__(self, shape: TableShape, options: EnvelopeOptions) -> None:
        table = f"{shape.database}.{shape.table}"
        if not shape.primary_key:
            raise UsageError(
                f"table {table} has no primary key, so its messages would have no key: leave it out"
            )
        self.topic = f"{options.prefix}.{table}"
        types = [connect_type(column, options) for column in shape.columns]
        self._names = [f"{table}, column {c.name} ({c.sql_type})" for c in shape.columns]
        for i in shape.primary_key:
            if not keeps_values_apart(shape.columns[i], types[i]):
                raise UsageError(
                    f"{self._names[i]}: two keys may become one as {types[i].name or types[i].type}"
                    f": write such columns precisely (--decimal precise or string, --time adaptive "
                    f"or isostring), or leave the table out"
                )
        self._converters = [
            converter(*each) for each in zip(shape.columns, types, self._names, strict=True)
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
        """Return the columns of row images as Connect values; a missing image has nulls.

        ValueDoesNotFit on a value of a key that would become null.
        """
        columns = image.flatten()
        found = [convert(column) for convert, column in zip(self._converters, columns, strict=True)]
        for i in self._key_columns:
            if found[i].null_count > columns[i].null_count:
                raise ValueDoesNotFit(
                    f"{self._names[i]}: a TIME that is not a time of day would be null in a key: "
                    f"write such columns with --time adaptive, or leave the table out"
                )
        return found

    def keys(self, codec: Codec, columns: list[pa.Array]) -> pa.Array:
        """Return the encoded keys of converted row images."""
        fields = self.key.fields
        chosen = (columns[i] for i in self._key_columns)
        values = [codec.value(f.schema, v) for f, v in zip(fields, chosen, strict=True)]
        return codec.struct(fields, values)
