"""Decodes the records of shard logs into VEvents."""

import json
from typing import Any

from topics.errors import UnknownEnvelope
from topics.records.envelope import EnvelopeReader
from topics.records.record_reader import BROKEN, RecordReader, broken_record
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
        reader = self.reader_of(schema_id, shard, offset)
        try:
            return reader.read(value or b"", shard, offset)
        except BROKEN as error:
            raise broken_record(value, shard, offset, error) from error

    def reader_of(self, schema_id: int, shard: str, offset: int) -> RecordReader:
        """Return the reader of a schema's records; shard and offset are for errors."""
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._readers[schema_id] = self._new_reader(schema_id, shard, offset)
        return reader

    def _new_reader(self, schema_id: int, shard: str, offset: int) -> RecordReader:
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
