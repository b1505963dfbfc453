"""Values of random rows against the server's own answer and against mysql-replication."""

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from event_token import Flavor
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import decode
from tests.producers.decoder.other_decoder import binlog_end, images_by_mysql_replication
from tests.producers.decoder.workload import run_workload, selected_rows
from topics.records.vevent import VEvent

ROWS = 150
# mysql-replication reads these otherwise, each by its own documentation or known fault: no
# microseconds before the epoch, BIT as text, empty SETs and zero years as None, its own JSON,
# BINARY without its last zeros.
NOT_COMPARED = {"b1", "j1", "x1", "x2", "x3", "s1", "t7", "t2", "t3", "c3"}


class Workload:
    def __init__(self, database: DatabaseFixture) -> None:
        self.database = database
        self.before = executed_set(database)
        if database.flavor is Flavor.MYSQL:
            self.file, self.file_pos = binlog_end(database)
        self.name = database.new_database()
        run_workload(database, self.name, ROWS, seed=20)
        sink, _ = decode(capture(database, self.before), database.flavor, self.before)
        self.events = sink.events()


@pytest.fixture(scope="module", params=["mysql_a", "mariadb_a"])
def workload(real_servers: None, request: pytest.FixtureRequest) -> Workload:
    return Workload(request.getfixturevalue(request.param))


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    """A decoded row in the types that PyMySQL gives."""
    plain = dict(row)
    for name, bits in (("x1", 1), ("x2", 33), ("x3", 64)):
        if plain[name] is not None:
            plain[name] = plain[name].to_bytes((bits + 7) // 8, "big")
    if plain["s1"] is not None:
        plain["s1"] = ",".join(plain["s1"])
    if plain["t6"] is not None:
        plain["t6"] = plain["t6"].astimezone(UTC).replace(tzinfo=None)
    return plain


def final_rows(events: list[VEvent]) -> dict[Any, dict[str, Any]]:
    """The rows that stand after these changes; each before image must be what stood there."""
    rows: dict[Any, dict[str, Any]] = {}
    for event in events:
        if event.before is not None:
            assert rows.pop(event.before["id"]) == event.before
        if event.after is not None:
            rows[event.after["id"]] = event.after
    return rows


def test_changes_add_up_to_what_the_server_shows(workload: Workload) -> None:
    """Inserts, updates and deletes applied in order give the table, value by value."""
    expected = selected_rows(workload.database, workload.name)
    rows = {key: comparable(row) for key, row in final_rows(workload.events).items()}

    assert rows.keys() == expected.keys()
    for key, row in expected.items():
        assert rows[key] == row


@pytest.mark.parametrize("workload", ["mysql_a"], indirect=True)
def test_mysql_replication_agrees(workload: Workload) -> None:
    """Both images of every change are what mysql-replication makes of the same binlog.

    On MySQL only: after a reconnect, which it makes by itself, it repeats MariaDB's rows.
    """
    mine = [event for event in workload.events if event.shape is not None]
    second = list(islice(second_opinion(workload), len(mine)))

    assert len(second) == len(mine)
    for event, (before, after) in zip(mine, second, strict=True):
        for image, other in ((event.before, before), (event.after, after)):
            assert (image is None) == (other is None)
            if image is not None:
                kept = {n: v for n, v in comparable(image).items() if n not in NOT_COMPARED}
                assert kept == {n: second_value(other[n]) for n in kept}


def second_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return value


def second_opinion(workload: Workload) -> Any:
    """Pairs of images of all changes of the workload's table."""
    return images_by_mysql_replication(
        workload.database, workload.name, workload.file, workload.file_pos
    )
