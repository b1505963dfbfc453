"""Decodes the records of shard logs into VEvents."""

import json
from typing import Any, Final

from topics.errors import CorruptRecord, UnknownEnvelope
from topics.records.envelope import EnvelopeReader
from topics.records.record_reader import RecordReader
from topics.records.schema_ids import SchemaIds
from topics.records.table_shape import (
    SKIP_ENVELOPE_VERSION,
    TYPES_BY_ENVELOPE,
    TableShape,
    ddl_schema,
    envelope_fields,
    plain_schema,
    row_schema,
    shape_of,
    skip_schema,
)
from topics.records.vevent import VEvent
from topics.records.wire import schema_id_of

# Raised by reading bytes that do not follow the schema.
_BROKEN: Final = (IndexError, OverflowError, ValueError)


class RecordDecoder:
    """Decodes the records of shard logs, with one reader per schema.

    Not thread-safe. Errors name shard and offset.
    """

    def __init__(self, schema_ids: SchemaIds) -> None:
        self._schema_ids = schema_ids
        self._readers: dict[int, RecordReader] = {}
        self._envelope = EnvelopeReader()

    def decode(self, value: bytes | None, shard: str, offset: int) -> VEvent:
        """Decode the value of a record.

        CorruptRecord when the bytes do not follow their schema, UnknownEnvelope when this release
        does not read records of that schema.
        """
        schema_id = schema_id_of(value, f"log of shard {shard}", offset)
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._reader_of(schema_id, shard, offset)
        try:
            return reader.read(value or b"", shard, offset)
        except _BROKEN as error:
            raise CorruptRecord(
                f"log of shard {shard}, offset {offset}: the record does not follow its schema "
                f"{schema_id}: {type(error).__name__} {error}",
            ) from error

    def _reader_of(self, schema_id: int, shard: str, offset: int) -> RecordReader:
        schema = json.loads(self._schema_ids.text_of(schema_id))
        version = schema.get("envelope", 0) if isinstance(schema, dict) else 0
        types = TYPES_BY_ENVELOPE.get(version)
        expected = [] if types is None else plain_schema(envelope_fields(types))
        if types is None or plain_schema(schema["fields"][: len(expected)]) != expected:
            raise UnknownEnvelope(
                f"log of shard {shard}, offset {offset}: schema {schema_id} is not a shard log's "
                f"with an envelope version that this release knows "
                f"({', '.join(map(str, TYPES_BY_ENVELOPE))}): read it with the release that wrote "
                f"it",
            )
        shape = shape_of(schema)
        known = plain_schema(_schema_of(version, shape))
        if known["fields"] != plain_schema(schema)["fields"]:
            raise UnknownEnvelope(
                f"log of shard {shard}, offset {offset}: schema {schema_id} has fields that this "
                f"release does not know: read it with the release that wrote it",
            )
        return RecordReader(shape, self._envelope)


def _schema_of(version: int, shape: TableShape | None) -> dict[str, Any]:
    if version == SKIP_ENVELOPE_VERSION:
        return skip_schema()
    return ddl_schema() if shape is None else row_schema(shape)
