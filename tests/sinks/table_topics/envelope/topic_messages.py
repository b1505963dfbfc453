"""Records of a real server's changes, and their messages."""

from collections.abc import Mapping
from typing import NamedTuple

from sinks.table_topics.envelope.table_encoder import Register, TableEncoder, VersionRecords
from sinks.table_topics.options import EnvelopeOptions
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.decoded import captured
from topics.records.table_shape import TableShape


class TopicMessage(NamedTuple):
    """A message; `row`: the number of its record. `header`: its only one, if it has one."""

    row: int
    key: bytes
    value: bytes | None
    header: tuple[str, bytes] | None


def messages_of(
    shape: TableShape,
    records: VersionRecords,
    options: EnvelopeOptions,
    register: Register | None = None,
    processed_us: int = 1,
) -> list[TopicMessage]:
    """The messages of records of a table version."""
    found = TableEncoder(shape, options, register).encode(records, processed_us)
    messages = zip(found.rows, found.keys, found.values, strict=True)
    return [TopicMessage(*each, found.headers.get(i)) for i, each in enumerate(messages)]


def records_of(
    server: DatabaseFixture, statements: tuple[str, ...], declared: Mapping[str, str] | None = None
) -> list[tuple[TableShape, VersionRecords]]:
    """Run statements as `captured` does and return the records by table version."""
    found = []
    for schema, records in captured(server, statements, declared):
        assert schema.shape is not None
        found.append((schema.shape, VersionRecords(records, schema.envelope_version)))
    return found
