"""Checks that copied rows are the bytes that the stream would have written."""

import re
from dataclasses import replace

from producers.copy.chunk import ChunkConnection, chunk_select
from producers.copy.definition import CannotCopy, TableDefinition, read_definition
from producers.decoder.tables.plan import KeyWatch, TablePlan
from producers.filters.binding import source_columns
from producers.filters.where import SourceColumn, collation_named
from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.case_files import Case
from tests.producers.decoder.decoding import (
    ALL_ROWS,
    Message,
    Sink,
    catalog_of,
    new_decoder,
)
from tests.producers.session.producing import server_of, settings_alone
from topics.records.vevent import EventType, Op, Row, VEvent

# After these the last images in the log are not the rows as they stand.
NOT_AS_THEY_STAND = re.compile(
    r"row_image|sql_log_bin|skip-log|BLACKHOLE|MERGE|TEMPORARY|ALTER|RENAME|TRUNCATE|DROP|MODIFY"
    r"|CASCADE",
    re.IGNORECASE,
)
PRESENT_ENDS = ("2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999")
NOT_COPIED = re.compile("does not exist|has a column prefix|neither a primary key|not a base table")


def leaves_rows(case: Case) -> bool:
    """Return whether the last images in the log are the table's current rows."""
    return not isinstance(case.expected, dict) and not any(
        map(NOT_AS_THEY_STAND.search, (*case.statements, *case.server_options))
    )


def newest(
    messages: list[Message], events: list[VEvent]
) -> dict[str, dict[bytes, tuple[Message, VEvent]]]:
    """Return each remaining row's last image in the log, by table and record key."""
    rows: dict[str, dict[bytes, tuple[Message, VEvent]]] = {}
    keys: dict[str, dict[tuple[object, ...], bytes]] = {}
    for message, event in zip(messages, events, strict=True):
        if event.type is not EventType.ROW or event.shape is None or not event.shape.primary_key:
            continue
        names = [event.shape.columns[i].name for i in event.shape.primary_key]
        table, known = rows.setdefault(event.table, {}), keys.setdefault(event.table, {})
        if event.before is not None and is_present(event, event.before):
            table.pop(known.pop(tuple(event.before[n] for n in names), b""), None)
        if event.after is not None and is_present(event, event.after):
            known[tuple(event.after[n] for n in names)] = message.key
            table[message.key] = (message, event)
    return rows


def is_present(event: VEvent, image: Row) -> bool:
    """Return whether a SELECT shows a row image, or a table with versions has it as history."""
    if event.shape is None or event.shape.row_end is None:
        return True
    end = image[event.shape.columns[event.shape.row_end].name]
    return str(end).partition("+")[0] in PRESENT_ENDS


class SeenByRules:
    """Keeps how filter rules see the columns of each table version, and filters nothing."""

    def __init__(self) -> None:
        self.columns: dict[str, list[SourceColumn]] = {}

    def definitions_changed(self) -> None:
        """Never refuse a table version."""

    def leaves_out(self, database: str, table: str) -> bool:
        """No table."""
        del database, table
        return False

    def leaves_out_database(self, database: str) -> bool:
        """No database."""
        del database
        return False

    def filter_plan(self, table: TablePlan) -> None:
        """Return no rule."""
        self.columns[table.table] = [
            replace(column, collation=name if collation_named(name) else name.split(" ")[0])
            for column in source_columns(table)
            for name in (column.collation,)
        ]


def definition_of(
    chunks: ChunkConnection, settings: ShardProducerSettings, database: str, table: str
) -> TableDefinition | None:
    """Return the table as a copy reads it; None if it is rightly refused."""
    try:
        return read_definition(chunks.connection, settings, database, table)
    except CannotCopy as error:
        if NOT_COPIED.search(str(error)) is None:
            raise
        return None


def check_copied_rows(case: Case, server: DatabaseFixture) -> None:
    """Run a case, copy its tables and compare."""
    database = server.new_database()
    before = executed_set(server)
    run_statements(server, database, case.statements)
    stream = capture(server, before)
    sink = Sink()
    rules = SeenByRules()
    catalog = catalog_of(server, case.typed_columns(database))
    decoder = new_decoder(sink, case.flavor, before, rules=rules, catalog=catalog)
    decoder.feed(stream, 0, len(stream), ALL_ROWS)
    decoder.take_batch()
    logged = newest(sink.messages, sink.events())
    settings = settings_alone(server, typed_columns=case.typed_columns(database))
    chunks = ChunkConnection(server_of(server))
    watches = {table: KeyWatch(database, table, 0) for table in logged}
    watching = new_decoder(Sink(), case.flavor, before, catalog=catalog)
    for watch in watches.values():
        watching.copy_writer.watch(watch)
    watching.feed(stream, 0, len(stream), ALL_ROWS)
    for table, rows in logged.items():
        sink.messages.clear()
        seen_by_rules = rules.columns[table]
        definition = definition_of(chunks, settings, database, table)
        if definition is None:
            continue
        # A copy that runs beside these changes sees whole rows of the table that it reads.
        assert watches[table].partial_seq == -1
        assert watches[table].touched.keys() >= rows.keys()
        assert watches[table].shape == definition.plan.shape()
        for limit in (1000, 1):
            sink.messages.clear()
            after: tuple[str, ...] = ()
            while True:
                found = chunks.read(definition, chunk_select(definition, after, limit))
                for piece in found.pieces:
                    watch = KeyWatch(database, table, 0)
                    decoder.copy_writer.copy_rows(definition.plan, piece.images, watch, 0)
                    decoder.copy_writer.end(database, table, [("LAST_PK", "{}")])
                    after = piece.last_key
                if found.rows < limit:
                    break
            decoder.take_batch()
            reads = [
                (message, event)
                for message, event in zip(sink.messages, sink.events(), strict=True)
                if event.op is Op.READ
            ]

            assert len(reads) == len(rows)
            assert rules.columns[table] == seen_by_rules
            for message, event in reads:
                logged_message, logged_event = rows[message.key]
                assert event.after == logged_event.after
                assert event.shape == logged_event.shape
                # The wire format's schema id.
                assert message.value[:5] == logged_message.value[:5]
    chunks.close()
