"""Tables by kind of value have an entry for each kind: a forgotten one would be a wrong value."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from sqlalchemy import make_url

from producers.decoder.values.wire import raw_form
from resharding.apply.literals import literal_writer
from sinks.database import mysql_dialect
from sinks.database.postgresql import PostgresDialect
from sinks.rule.columns import widest
from sinks.table_topics.envelope.connect_types import connect_type
from sinks.table_topics.envelope.value_writers import value_writer
from sinks.table_topics.options import EnvelopeOptions
from tests.sinks.database.kinds import kinds
from tests.topics.records.events import VALUES
from topics.arrow.columns.arrow_values import reader_for, skipper_for
from topics.arrow.columns.json_values import json_value_for
from topics.arrow.output_columns import arrow_type
from topics.arrow.schema_plans import builder_for
from topics.errors import UnknownEnvelope
from topics.records.table_shape import (
    Column,
    TableShape,
    ValueKind,
    avro_type,
    known_schema,
    row_schema,
    schema_text,
)

ENVELOPE = EnvelopeOptions(keyspace="commerce")
POSTGRESQL = PostgresDialect(make_url("postgresql+psycopg://"))
TABLES: dict[str, Callable[[Column], object]] = {
    "avro_type": avro_type,
    "arrow_type": arrow_type,
    "builder_for, reader_for": lambda column: reader_for(column, builder_for(arrow_type(column))),
    "skipper_for": skipper_for,
    "json_value_for": json_value_for,
    "raw_form": lambda column: raw_form(column.kind),
    "literal_writer": literal_writer,
    "type_of of MySQL": mysql_dialect.type_of,
    "type_of of PostgreSQL": POSTGRESQL.type_of,
    "widest": lambda column: widest(column, column),
    "connect_type": lambda column: connect_type(column, ENVELOPE),
    "value_writer": lambda column: value_writer(
        column, connect_type(column, ENVELOPE), is_avro=True, where="t.c"
    ),
    "values of tests/topics/records/events.py": lambda column: (
        column.kind is ValueKind.DECIMAL or VALUES[column.kind]
    ),
    "kinds of tests/sinks/database/kinds.py": lambda column: next(
        each for each in kinds().columns if each.kind is column.kind
    ),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ValueKind)
def test_every_kind_has_its_forms(kind: ValueKind, table: str) -> None:
    """Each table knows each kind."""
    assert TABLES[table](Column("c", kind, "int", 10, 2, ("a",))) is not None


def test_only_lists_of_texts_go_into_their_builder() -> None:
    """A kind with lists of something else needs its own builder: its values are no texts."""
    with pytest.raises(ValueError, match="no builder for list"):
        builder_for(pa.list_(pa.float32()))


def test_a_kind_of_a_later_release_halts() -> None:
    """A schema with a kind that this release does not know stops its readers by name."""
    schema = row_schema(TableShape("d", "t", (Column("c", ValueKind.INT, "int"),)), "commerce")
    text = schema_text(schema).replace('"kind":"int"', '"kind":"later"')

    with pytest.raises(UnknownEnvelope, match="schema 7 has fields that this release does not"):
        known_schema(text, 7, "a log")
