"""Changes of a real server, by table version: records, or decoded rows."""

from collections.abc import Mapping

import pyarrow as pa

from producers.typed_columns import TypedColumns
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import catalog_of, decode
from topics.arrow.decoders import PLACES, TableDecoder
from topics.records.table_shape import RecordSchema, TableShape, known_schema, schema_id_of

Versions = list[tuple[RecordSchema, list[bytes]]]


def captured(
    server: DatabaseFixture, statements: tuple[str, ...], declared: Mapping[str, str] | None = None
) -> Versions:
    """Run statements in a new database and return the records of the rows that they changed.

    `declared`: types of columns (`table.column`) that a binlog does not tell.
    """
    texts, of_version = _captured(server, statements, declared)
    return [(known_schema(texts[i], i, "a test"), records) for i, records in of_version.items()]


def decoded_rows(
    server: DatabaseFixture, statements: tuple[str, ...]
) -> list[tuple[TableShape, pa.RecordBatch]]:
    """Run statements as `captured` does and return decoded rows."""
    texts, of_version = _captured(server, statements)
    decoder = TableDecoder(texts.__getitem__, more=PLACES)
    return [(decoder.shape(i), decoder.decode(i, records)) for i, records in of_version.items()]


def _captured(
    server: DatabaseFixture, statements: tuple[str, ...], declared: Mapping[str, str] | None = None
) -> tuple[list[str], dict[int, list[bytes]]]:
    """Return the texts of schemas, and records by the id of theirs."""
    database = server.new_database()
    start = executed_set(server)
    run_statements(server, database, statements)
    catalog = None
    if declared is not None:
        columns = {f"{database}.{name}": kind for name, kind in declared.items()}
        catalog = catalog_of(server, TypedColumns(columns))
    sink, _ = decode(capture(server, start), server.flavor, start, catalog=catalog)
    of_version: dict[int, list[bytes]] = {}
    for event, message in zip(sink.events(), sink.messages, strict=True):
        if event.shape is not None and event.database == database:
            schema_id = schema_id_of(message.value, message.topic)
            of_version.setdefault(schema_id, []).append(message.value)
    return sink.schema_ids.texts, of_version
