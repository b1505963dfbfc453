"""Changes of a real server as decoded rows, one batch per table version."""

from collections.abc import Mapping

import pyarrow as pa

from producers.preflight.typed_columns import TypedColumns
from spark_consumers.decoding.record_decoder import PLACES, RecordDecoder
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.decoding import decode, types_of
from topics.records.table_shape import TableShape
from topics.records.wire import schema_id_of


def decoded_rows(
    server: DatabaseFixture, statements: tuple[str, ...], declared: Mapping[str, str] | None = None
) -> list[tuple[TableShape, pa.RecordBatch]]:
    """Run statements in a new database and return the rows that they changed.

    `declared`: types of columns (`table.column`) that a binlog does not tell.
    """
    database = server.new_database()
    start = executed_set(server)
    run_statements(server, database, statements)
    types = None
    if declared is not None:
        columns = {f"{database}.{name}": kind for name, kind in declared.items()}
        types = types_of(server, TypedColumns(columns))
    sink, _ = decode(capture(server, start), server.flavor, start, hidden_types=types)
    of_version: dict[int, list[bytes]] = {}
    for event, message in zip(sink.events(), sink.messages, strict=True):
        if event.shape is not None and event.database == database:
            of_version.setdefault(schema_id_of(message.value, message.topic), []).append(
                message.value
            )
    decoder = RecordDecoder(sink.schema_ids.text_of, more=PLACES)
    return [
        (decoder.shape(schema_id), decoder.decode(schema_id, records))
        for schema_id, records in of_version.items()
    ]
