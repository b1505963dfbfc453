"""The Kafka headers of a changed key."""

from typing import Final

import pyarrow as pa

from spark_consumers.row_columns.text import decimal_text
from spark_consumers.table_topics.envelope.column_types import DECIMAL
from spark_consumers.table_topics.envelope.connect_schema import ConnectSchema
from spark_consumers.table_topics.envelope.json_text import JsonText

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"


class HeaderText(JsonText):
    """Keys as Connect's SimpleHeaderConverter writes them: JSON in which decimals are numbers."""

    def __init__(self) -> None:
        super().__init__(schemas=False)

    def value(self, schema: ConnectSchema, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        if schema.name != DECIMAL:
            return super().value(schema, values)
        scale = int(dict(schema.parameters)["scale"])
        texts = [
            None
            if value is None
            else decimal_text(int.from_bytes(value, "big", signed=True), scale).decode()
            for value in values.to_pylist()
        ]
        return pa.array(texts, pa.string())


def headers_of(old_key: bytes | None, new_key: bytes | None) -> list[tuple[str, bytes]]:
    """Return the headers of a message, from columns old_key and new_key of `MESSAGES`."""
    pairs = ((OLD_KEY, old_key), (NEW_KEY, new_key))
    return [(name, value) for name, value in pairs if value is not None]
