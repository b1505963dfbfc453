"""Runs a case of tests/cases on a server, and compares what the decoder makes of it."""

import re
from typing import Any

import pytest

from producers import decoder as decoder_package
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set, run_statements
from tests.producers.decoder.case_files import Case
from tests.producers.decoder.decoding import catalog_of, decode
from topics.records.event_json import event_to_json_dict


def check_case(case: Case, server: DatabaseFixture) -> None:
    """Run a case and compare its events, or its error, with what it expects."""
    database = server.new_database()
    before = executed_set(server)
    run_statements(server, database, case.statements)
    stream = capture(server, before)
    catalog = catalog_of(server, case.typed_columns(database))
    if isinstance(case.expected, dict):
        with pytest.raises(getattr(decoder_package, case.expected["error"])) as caught:
            decode(stream, case.flavor, before, catalog=catalog)
        for text in ["shard -80", "transaction ", "binlog.", *case.expected["says"]]:
            assert text.replace("{db}", database) in str(caught.value)
        return

    sink, summary = decode(stream, case.flavor, before, catalog=catalog)
    events = [event_to_json_dict(event) for event in sink.events()]

    assert [_shown(got, database) for got in events] == _full(case.expected)
    assert [e.seq for e in sink.events()] == list(range(1, len(events) + 1))
    assert summary.position == executed_set(server)


def _shown(event: dict[str, Any], database: str) -> dict[str, Any]:
    """The part of an event that a case can expect: nothing that differs from run to run."""
    kept = {name: event[name] for name in ("op", "table", "before", "after")}
    if event["type"] == "DDL":
        statement = event["statement"].replace(database, "{db}")
        return {"statement": re.sub(r"DEFINER=\S+", "DEFINER={user}", statement)}
    return kept


def _full(expected: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fill in the images that a case leaves out."""
    return [
        event if "statement" in event else {"before": None, "after": None, **event}
        for event in expected
    ]
