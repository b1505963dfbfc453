import io
import json
from base64 import b64encode
from dataclasses import replace
from typing import Any

import fastavro
import pytest
from numpy import float32

from event_token.errors import UsageError
from sinks.table_topics.envelope.connect_types import avro_name
from sinks.table_topics.envelope.table_encoder import TableEncoder, VersionRecords
from sinks.table_topics.options import EnvelopeOptions, Format
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.golden_cases import RUNS, case_statements
from tests.sinks.table_topics.envelope.topic_messages import messages_of, records_of
from topics.records.table_shape import Column, TableShape, ValueKind, plain_schema, schema_id_of

AVRO = {
    Format.DEBEZIUM_JSON: Format.DEBEZIUM_AVRO,
    Format.FLAT_JSON: Format.FLAT_AVRO,
}


class Subjects:
    """Registered schemas by subject; ids count from 1."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def register(self, subject: str, text: str) -> int:
        self.texts.append((subject, text))
        return len(self.texts)

    def read(self, message: bytes | None) -> Any:
        """A message's value without the meaning of logical types."""
        if message is None:
            return None
        text = self.texts[schema_id_of(message, "t") - 1][1]
        fastavro.parse_schema(json.loads(text))  # with its logical types
        schema = fastavro.parse_schema(plain_schema(json.loads(text)))
        stream = io.BytesIO(message[5:])
        found = fastavro.schemaless_reader(stream, schema, None)
        assert stream.read() == b""
        return found


@pytest.fixture(scope="module")
def decoded(mysql_a: DatabaseFixture) -> list[tuple[TableShape, VersionRecords]]:
    return records_of(mysql_a, case_statements())


def as_json(value: Any) -> Any:
    """What JSON has for a value of Avro: base64 for bytes, and Avro's names."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict):
        found = {avro_name(name): as_json(part) for name, part in value.items()}
        if found.get("f") is not None:
            # A float; JSON has its shortest digits.
            found["f"] = float32(found["f"])
        return found
    return [as_json(part) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("run", RUNS)
def test_avro_has_the_values_of_json(
    decoded: list[tuple[TableShape, VersionRecords]], run: str
) -> None:
    """Read by another library, Avro messages say what the JSON ones do, which are Debezium's."""
    options = RUNS[run].options
    for shape, rows in decoded:
        subjects = Subjects()
        in_avro = replace(options, format=AVRO[options.format])
        found = messages_of(shape, rows, in_avro, subjects.register)

        for expected, message in zip(messages_of(shape, rows, options), found, strict=True):
            assert as_json(json.loads(expected.key)) == as_json(subjects.read(message.key))
            value = expected.value and as_json(json.loads(expected.value))
            assert value == as_json(subjects.read(message.value))
            assert (expected.row, expected.header) == (message.row, message.header)


def test_subjects_follow_the_topic_and_types_keep_connects_names(
    decoded: list[tuple[TableShape, VersionRecords]],
) -> None:
    """A topic has the subjects TOPIC-key and TOPIC-value; types have Connect's attributes."""
    shape, rows = decoded[0]
    subjects = Subjects()

    options = replace(RUNS["adaptive"].options, format=Format.DEBEZIUM_AVRO)
    messages_of(shape, rows, options, subjects.register)

    topic = f"adaptive.{shape.database}.all_types"
    assert [subject for subject, _ in subjects.texts] == [f"{topic}-key", f"{topic}-value"]
    value = json.loads(subjects.texts[1][1])
    assert (value["namespace"], value["name"]) == (topic, "Envelope")
    before, after = value["fields"][:2]
    assert (after["type"], after["default"]) == (["null", f"{topic}.Value"], None)
    columns = {field["name"]: field for field in before["type"][1]["fields"]}
    assert all(field["type"][0] == "null" for field in columns.values())
    assert columns["tiny"]["type"][1] == {"type": "int", "connect.type": "int16"}
    assert columns["big"]["type"][1] == "long"
    assert columns["day"]["type"][1] == {
        "type": "int",
        "connect.version": 1,
        "connect.name": "io.debezium.time.Date",
    }
    assert columns["price"]["type"][1] == {
        "type": "bytes",
        "scale": 2,
        "precision": 10,
        "connect.version": 1,
        "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "logicalType": "decimal",
    }


def test_a_new_version_reads_messages_of_the_one_before(mysql_a: DatabaseFixture) -> None:
    """After ADD and DROP COLUMN, and INT to BIGINT, the new schema reads the old messages."""
    subjects, options = Subjects(), EnvelopeOptions("s", "p", format=Format.DEBEZIUM_AVRO)
    found = [
        messages_of(shape, rows, options, subjects.register)
        for shape, rows in records_of(
            mysql_a,
            (
                "CREATE TABLE t (id INT PRIMARY KEY, gone INT, n INT)",
                "INSERT INTO t VALUES (1, 2, 3)",
                "ALTER TABLE t DROP COLUMN gone, ADD COLUMN more VARCHAR(3), MODIFY n BIGINT",
                "INSERT INTO t VALUES (2, 3, 'x')",
            ),
        )
    ]

    old, new = (
        fastavro.parse_schema(plain_schema(json.loads(text)))
        for subject, text in subjects.texts
        if subject.endswith("-value")
    )
    read: Any = fastavro.schemaless_reader(io.BytesIO((found[0][0].value or b"")[5:]), old, new)

    assert read["after"] == {"id": 1, "n": 3, "more": None}


def test_avro_needs_a_registry_and_distinct_names() -> None:
    """Without a registry, and with two columns of one Avro name, a table is refused by name."""
    options = EnvelopeOptions("shop", "p", format=Format.FLAT_AVRO)
    columns = tuple(Column(name, ValueKind.INT, "int") for name in ("a-b", "a.b", "1st"))

    with pytest.raises(UsageError, match=r"p\.shop\.t: the Avro formats need a schema registry"):
        TableEncoder(TableShape("shop", "t", columns[:1], (0,)), options)
    with pytest.raises(UsageError, match=r"p\.shop\.t\.Value: two columns .* a_b"):
        TableEncoder(TableShape("shop", "t", columns, (0,)), options, Subjects().register)
    assert avro_name("1st") == "_1st"


def test_schemas_in_messages_are_for_json_alone() -> None:
    """Option schemas is refused with an Avro format."""
    with pytest.raises(UsageError, match="option schemas"):
        EnvelopeOptions("shop", "p", format=Format.DEBEZIUM_AVRO, schemas=True)
