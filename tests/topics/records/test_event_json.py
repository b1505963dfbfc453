import json
import struct
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import EventToken
from tests.generated import examples
from tests.topics.records.events import added, ddl_event, insert, row_events
from topics.errors import CorruptRecord
from topics.records.event_json import event_to_json_dict, event_to_json_text, shortest_float
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import InvalidDate, Value, VEvent

FIELDS = [
    "type",
    "database",
    "table",
    "op",
    "before",
    "after",
    "shard",
    "seq",
    "offset",
    "timestamp_us",
    "gtid",
    "token",
    "position",
    *added(),
]


def shown(kind: ValueKind, value: Value, sql_type: str = "x") -> object:
    """How a value of the kind looks in JSON."""
    shape = TableShape("d", "t", (Column("c", kind, sql_type),))
    return event_to_json_dict(insert(shape, {"c": value}))["after"]["c"]


@pytest.mark.parametrize(
    ("kind", "sql_type", "value", "expected"),
    [
        (ValueKind.LONG, "bigint", -(2**63), -(2**63)),
        (ValueKind.UNSIGNED_LONG, "bigint unsigned", 2**64 - 1, 18446744073709551615),
        (ValueKind.DECIMAL, "decimal(9,2)", Decimal("1.50"), "1.50"),
        (ValueKind.DECIMAL, "decimal(65,30)", Decimal("1E-30"), "0." + "0" * 29 + "1"),
        (ValueKind.FLOAT, "float", struct.unpack("<f", struct.pack("<f", 0.1))[0], 0.1),
        (ValueKind.DOUBLE, "double", 0.1, 0.1),
        (ValueKind.BYTES, "blob", b"\x00\xff", "AP8="),
        (ValueKind.DATE, "date", date(2026, 1, 2), "2026-01-02"),
        (ValueKind.DATE, "date", InvalidDate("2026-00-00"), "2026-00-00"),
        (
            ValueKind.DATETIME,
            "datetime(3)",
            datetime(2026, 1, 1, 0, 0, 0, 123000),  # noqa: DTZ001
            "2026-01-01T00:00:00.123",
        ),
        (
            ValueKind.DATETIME,
            "datetime",
            datetime(2026, 1, 1),  # noqa: DTZ001
            "2026-01-01T00:00:00",
        ),
        (
            ValueKind.TIMESTAMP,
            "timestamp(6)",
            datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
            "2026-01-01T00:00:00.123456Z",
        ),
        (
            ValueKind.TIMESTAMP,
            "timestamp(3)",
            datetime(2026, 1, 1, tzinfo=UTC),
            "2026-01-01T00:00:00.000Z",
        ),
        (
            ValueKind.TIMESTAMP,
            "timestamp",
            datetime(2026, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
            "2026-01-01T00:00:00.5Z",
        ),
        (ValueKind.TIME, "time", timedelta(hours=-838, minutes=-59, seconds=-59), "-838:59:59"),
        (ValueKind.TIME, "time", timedelta(hours=8), "08:00:00"),
        (ValueKind.TIME, "time(2)", timedelta(microseconds=-10000), "-00:00:00.01"),
        (ValueKind.YEAR, "year", 0, 0),
        (ValueKind.ENUM, "enum", "größer", "größer"),
        (ValueKind.SET, "set", ["a", "b"], ["a", "b"]),
        (ValueKind.BIT, "bit(8)", 255, 255),
        (ValueKind.BIT64, "bit(64)", 2**64 - 1, 18446744073709551615),
        (ValueKind.JSON, "json", '{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        (ValueKind.JSON, "json", "null", None),
        (ValueKind.STRING, "text", '{"a": 1}', '{"a": 1}'),
        (ValueKind.STRING, "text", None, None),
    ],
)
def test_each_kind_looks_as_documented(
    kind: ValueKind,
    sql_type: str,
    value: Value,
    expected: object,
) -> None:
    """Values of each kind print in their documented form, with the declared precision."""
    assert shown(kind, value, sql_type) == expected


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_keeps_its_32_bits(value: float) -> None:
    """The printed number reads back as the same 32-bit float."""
    printed = json.dumps(shortest_float(value))

    assert struct.pack("<f", float(printed)) == struct.pack("<f", value)


@pytest.mark.parametrize("text", ["0.1", "16777216.0", "3.4028235e+38", "1e-45", "-0.0", "3.14159"])
def test_float_prints_the_fewest_digits(text: str) -> None:
    """No digits are shown that a 32-bit float does not hold."""
    value = struct.unpack("<f", struct.pack("<f", float(text)))[0]

    assert json.dumps(shortest_float(value)) == text


@given(row_events())
@settings(max_examples=examples(60))
def test_any_event_is_one_line_of_json(event: VEvent) -> None:
    """Both forms agree, have the documented fields in order, and fit one line."""
    as_dict = event_to_json_dict(event)
    text = event_to_json_text(event)

    assert list(as_dict) == FIELDS
    assert json.loads(text) == json.loads(json.dumps(as_dict))
    assert "\n" not in text
    assert as_dict["token"] == event.token.to_string()
    assert EventToken.from_string(as_dict["token"]) == event.token


def test_absent_column_is_absent() -> None:
    """A column outside the row image is no key; NULL is null."""
    shape = TableShape(
        "d",
        "t",
        (Column("a", ValueKind.INT, "int"), Column("b", ValueKind.INT, "int")),
    )

    after = event_to_json_dict(insert(shape, {"a": None}))["after"]

    assert after == {"a": None}


def test_ddl_and_late_have_fields_of_their_own() -> None:
    """DDL carries its statement; lateness is told only where it is true."""
    ddl = event_to_json_dict(ddl_event("DROP TABLE t"))
    late = event_to_json_dict(replace(ddl_event("DROP TABLE t"), late=True))

    assert list(ddl) == [*FIELDS, "statement"]
    assert ddl["statement"] == "DROP TABLE t"
    assert (ddl["before"], ddl["after"], ddl["op"]) == (None, None, "NONE")
    assert late["late"] is True


def test_numbers_of_json_columns_keep_all_digits_as_text() -> None:
    """A DECIMAL inside JSON has more digits than a double; the text form keeps them."""
    shape = TableShape("d", "t", (Column("j", ValueKind.JSON, "json"),))
    event = insert(shape, {"j": '{"price": 12345678901234567890.123456789, "k": "\\"ü"}'})

    text = event_to_json_text(event)

    assert '"price": 12345678901234567890.123456789' in text
    assert json.loads(text)["after"]["j"]["k"] == '"ü'


@pytest.mark.parametrize("text", ["{", "NaN", "1e999", ""])
def test_a_json_column_without_json_is_corrupt(text: str) -> None:
    """What is no JSON document is refused and its place named."""
    with pytest.raises(CorruptRecord, match="offset 42: column c"):
        shown(ValueKind.JSON, text)
