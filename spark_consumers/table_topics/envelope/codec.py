"""What the two encodings, JSON and Avro, have in common."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from spark_consumers.table_topics.envelope.connect_schema import ConnectField, ConnectSchema


class Codec(Protocol):
    """Encodes Connect values, a column at a time."""

    def value(self, schema: ConnectSchema, values: pa.Array) -> pa.Array:
        """Return the encoded values; a null is left to `struct`."""

    def struct(
        self, fields: Sequence[ConnectField], values: Sequence[pa.Array | pa.Scalar]
    ) -> pa.Array:
        """Return structs of encoded values: a column, or one value for all rows."""

    def constant(self, schema: ConnectSchema, /, value: str | int | None) -> pa.Scalar:
        """Return one encoded value."""

    def message(self, schema: ConnectSchema, bodies: pa.Array) -> pa.Array:
        """Return encoded structs as the bytes of messages."""
