"""Every hazard in tests/cases, on a real server of each family that has it."""

import re
from typing import Any

import pytest

from producers import decoder as decoder_package
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.case_files import Case, all_cases
from tests.producers.decoder.decoding import decode, types_of
from topics.records.event_json import event_to_json_dict


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_case(case: Case, server_of_case: DatabaseFixture) -> None:
    """The statements of a case give the events, or the error, that the case expects."""
    check_case(case, server_of_case)


def check_case(case: Case, server: DatabaseFixture) -> None:
    """Run a case and compare."""
    database = server.new_database()
    before = executed_set(server)
    run_statements(server, database, case.statements)
    stream = capture(server, before)
    types = types_of(server, case.typed_columns(database))
    if isinstance(case.expected, dict):
        with pytest.raises(getattr(decoder_package, case.expected["error"])) as caught:
            decode(stream, case.flavor, before, hidden_types=types)
        for text in ["shard -80", "transaction ", "binlog.", *case.expected["says"]]:
            assert text.replace("{db}", database) in str(caught.value)
        return

    sink, summary = decode(stream, case.flavor, before, hidden_types=types)
    events = [event_to_json_dict(event) for event in sink.events()]

    assert [shown(got, database) for got in events] == full(case.expected)
    assert [e.seq for e in sink.events()] == list(range(1, len(events) + 1))
    assert summary.position == executed_set(server)


def run_statements(
    database_server: DatabaseFixture, database: str, statements: tuple[str, ...]
) -> None:
    """Run a case's statements in one session in UTC."""
    with database_server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00'")
        cursor.execute(f"USE {database}")
        for statement in statements:
            cursor.execute(statement.replace("{db}", database))


def shown(event: dict[str, Any], database: str) -> dict[str, Any]:
    """The part of an event that a case can expect: nothing that differs from run to run."""
    kept = {name: event[name] for name in ("op", "table", "before", "after")}
    if event["type"] == "DDL":
        statement = event["statement"].replace(database, "{db}")
        return {"statement": re.sub(r"DEFINER=\S+", "DEFINER={user}", statement)}
    return kept


def full(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fill in the images that a case leaves out."""
    return [
        event if "statement" in event else {"before": None, "after": None, **event}
        for event in expected
    ]
