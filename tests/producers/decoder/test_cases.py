"""Every hazard in tests/cases, on a real server of each family that has it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from event_token import Flavor
from producers import decoder as decoder_package
from shardstream.local.database_server import (
    NOT_DURABLE,
    Account,
    DatabaseServer,
    MariadbServer,
    MysqlServer,
)
from tests.conftest import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.case_files import Case, all_cases
from tests.producers.decoder.decoding import decode
from topics.json_values import event_to_json_dict

FIRST_SERVER_ID = 9200


class OwnServers:
    """Servers with options of their own, each started for the first case that asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[DatabaseServer] = []
        self._running: dict[tuple[Flavor, tuple[str, ...]], DatabaseFixture] = {}

    def with_options(self, flavor: Flavor, options: tuple[str, ...]) -> DatabaseFixture:
        found = self._running.get((flavor, options))
        if found is None:
            kind = MysqlServer if flavor is Flavor.MYSQL else MariadbServer
            number = len(self._started)
            server = kind(
                self._folder / str(number),
                server_id=FIRST_SERVER_ID + number,
                account=Account("shardstream", "of this test alone"),
                extra_args=(*NOT_DURABLE, *options),
                die_with_parent=True,
            )
            self._started.append(server)
            server.start()
            found = self._running[flavor, options] = DatabaseFixture(server)
        return found

    def end(self) -> None:
        for server in self._started:
            server.kill()


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServers]:
    servers = OwnServers(tmp_path_factory.mktemp("cases"))
    yield servers
    servers.end()


@pytest.fixture
def server_of_case(
    case: Case, own_servers: OwnServers, request: pytest.FixtureRequest
) -> DatabaseFixture:
    if case.server_options:
        return own_servers.with_options(case.flavor, case.server_options)
    name = "mysql_a" if case.flavor is Flavor.MYSQL else "mariadb_a"
    found = request.getfixturevalue(name)
    assert isinstance(found, DatabaseFixture)
    return found


@pytest.mark.parametrize("case", all_cases(), ids=str)
def test_case(case: Case, server_of_case: DatabaseFixture) -> None:
    """The statements of a case give the events, or the error, that the case expects."""
    database = server_of_case.new_database()
    before = executed_set(server_of_case)
    run_statements(server_of_case, database, case.statements)
    stream = capture(server_of_case, before)
    if isinstance(case.expected, dict):
        with pytest.raises(getattr(decoder_package, case.expected["error"])) as caught:
            decode(stream, case.flavor, before)
        for text in ["shard -80", "transaction ", "binlog.", *case.expected["says"]]:
            assert text.replace("{db}", database) in str(caught.value)
        return

    sink, summary = decode(stream, case.flavor, before)
    events = [event_to_json_dict(event) for event in sink.events()]

    assert [shown(got, database) for got in events] == full(case.expected)
    assert [e.seq for e in sink.events()] == list(range(1, len(events) + 1))
    assert summary.position == executed_set(server_of_case)


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
