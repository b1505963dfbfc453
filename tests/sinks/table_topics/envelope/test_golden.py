import json
from dataclasses import replace
from typing import Any

import pytest

from sinks.table_topics.envelope.table_encoder import VersionRecords
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.golden_cases import GOLDEN, RUNS, case_statements
from tests.sinks.table_topics.envelope.topic_messages import TopicMessage, messages_of, records_of
from topics.records.table_shape import TableShape

NOW_US = 1_700_000_000_123_456
# What an envelope says about its place and its time differs from run to run.
_PLACE = {"ts_ms", "ts_us", "ts_ns", "db", "sequence", "server_id", "gtid", "file", "pos", "row"}
_OURS = ["shard", "token", "keyspace"]


def golden(run: str) -> list[dict[str, Any]]:
    lines = (GOLDEN / f"{run}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def decoded(mysql_a: DatabaseFixture) -> list[tuple[TableShape, VersionRecords]]:
    return records_of(mysql_a, case_statements())


def ours(decoded: list[tuple[TableShape, VersionRecords]], run: str) -> list[dict[str, Any]]:
    found = [
        _parsed(shape.table, message)
        for shape, rows in decoded
        for message in messages_of(shape, rows, RUNS[run].options, processed_us=NOW_US)
    ]
    return sorted(found, key=lambda message: str(message["table"]))


def _parsed(table: str, message: TopicMessage) -> dict[str, Any]:
    headers = [] if message.header is None else [message.header]
    return {
        "table": table,
        "key": json.loads(message.key),
        "value": message.value and json.loads(message.value),
        "headers": {name: value.decode() for name, value in headers},
    }


def comparable(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row of Debezium or of ours, without the two differences that the docs name."""
    if row is None:
        return None
    row = dict(row)
    if row.get("flag") is not None:
        # TINYINT(1): the log has no display width, so ours is a number.
        row["flag"] = int(row["flag"])
    if row.get("doc") is not None:
        row["doc"] = json.loads(row["doc"])
    return row


@pytest.mark.parametrize("run", ["adaptive", "connect", "isostring"])
def test_envelopes_equal_debeziums(
    decoded: list[tuple[TableShape, VersionRecords]], run: str
) -> None:
    """Key, row images, op, headers and the fields of `source` are those of Debezium 3.6."""
    expected, found = golden(run), ours(decoded, run)

    assert [(m["table"], m["key"], m["headers"]) for m in expected] == [
        (m["table"], m["key"], m["headers"]) for m in found
    ]
    for theirs, mine in zip(expected, found, strict=True):
        if theirs["value"] is None:
            assert mine["value"] is None
            continue
        value = mine["value"]
        assert list(theirs["value"]) == list(value)
        for image in ("before", "after"):
            assert comparable(theirs["value"][image]) == comparable(value[image])
        source = theirs["value"]["source"]
        assert [*source, *_OURS] == list(value["source"])
        same = source.keys() - _PLACE - {"thread"}
        assert {n: source[n] for n in same} == {n: value["source"][n] for n in same}
        assert theirs["value"]["op"] == value["op"]
        assert value["transaction"] is None
        assert (value["ts_ms"], value["ts_us"], value["ts_ns"]) == (
            NOW_US // 1000,
            NOW_US,
            NOW_US * 1000,
        )


def test_flat_rows_equal_debeziums(decoded: list[tuple[TableShape, VersionRecords]]) -> None:
    """A flat message has the fields of ExtractNewRecordState, and then ours."""
    expected, found = golden("flat"), ours(decoded, "flat")

    assert [(m["table"], m["key"], m["headers"]) for m in expected] == [
        (m["table"], m["key"], m["headers"]) for m in found
    ]
    for theirs, mine in zip(expected, found, strict=True):
        if theirs["value"] is None:
            assert mine["value"] is None
            continue
        value = mine["value"]
        added = {name: value.pop(name) for name in list(value)[-4:]}
        assert list(added) == ["_time_us", "_shard", "_seq", "_token"]
        assert value["__source_ts_ms"] == added["_time_us"] // 1000
        theirs["value"]["__source_ts_ms"] = value["__source_ts_ms"]
        assert comparable(theirs["value"]) == comparable(value)
        assert list(theirs["value"]) == list(value)


def test_flat_schema_equals_debeziums(
    decoded: list[tuple[TableShape, VersionRecords]],
) -> None:
    """The schema of a flat message is that of ExtractNewRecordState, and then our fields."""
    options = replace(RUNS["flat"].options, schemas=True)
    for shape, rows in decoded:
        message = messages_of(shape, rows, options)[0]
        value = json.loads(message.value or b"")["schema"]
        mine = renamed(value, "flat", shape.database)
        theirs = golden_schemas("flat")[shape.table]["value"]

        assert nullable(theirs) == nullable(mine)[:-4]
        assert {**theirs, "fields": []} == {**mine, "fields": []}


def golden_schemas(run: str) -> dict[str, Any]:
    lines = (GOLDEN / f"{run}.schemas.jsonl").read_text("utf-8").splitlines()
    return {found["table"]: found for found in map(json.loads, lines)}


def renamed(schema: dict[str, Any], run: str, database: str) -> dict[str, Any]:
    """A schema as the golden database would have it."""
    text = json.dumps(schema).replace(f"{run}.{database}.", f"{run}.golden.")
    found: dict[str, Any] = json.loads(text)
    return found


def nullable(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Columns of a row's schema, without the two differences that the docs name."""
    return [
        {**field, "optional": True, "type": "int16" if field["field"] == "flag" else field["type"]}
        for field in row["fields"]
    ]


@pytest.mark.parametrize("run", ["adaptive", "connect", "isostring"])
def test_schemas_equal_debeziums(
    decoded: list[tuple[TableShape, VersionRecords]], run: str
) -> None:
    """With schemas, key and value are wrapped in the schemas that Debezium's messages have."""
    options = replace(RUNS[run].options, schemas=True)
    for shape, rows in decoded:
        message = messages_of(shape, rows, options)[0]
        expected = golden_schemas(run)[shape.table]

        key, value = (
            {**found, "schema": renamed(found["schema"], run, shape.database)}
            for found in (json.loads(message.key), json.loads(message.value or b""))
        )

        assert expected["key"] == key["schema"]
        assert key["payload"].keys() == {f["field"] for f in key["schema"]["fields"]}
        theirs, mine = expected["value"], value["schema"]
        assert {**theirs, "fields": []} == {**mine, "fields": []}
        by_name = {field["field"]: field for field in theirs["fields"]}
        for field in mine["fields"]:
            match = by_name.pop(field["field"])
            if field["field"] in {"before", "after"}:
                assert nullable(match) == nullable(field)
                match["fields"] = field["fields"]
            if field["field"] == "source":
                assert [f["field"] for f in field["fields"][-3:]] == _OURS
                field["fields"] = field["fields"][:-3]
            assert match == field
        assert by_name == {}
        assert set(value) == {"schema", "payload"}
        assert value["payload"]["op"] == "c"
