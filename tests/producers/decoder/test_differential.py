"""Random tables, random values, random ALTERs: the log against a SELECT and mysql-replication."""

import random
from itertools import islice
from typing import Any

import pytest

from event_token import Flavor
from producers.preflight.typed_columns import TypedColumns
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import decode, types_of
from tests.producers.decoder.random_tables import RandomTable
from tests.producers.decoder.test_values import binlog_end, images_by_mysql_replication
from topics.records.event_json import event_to_json_dict
from topics.records.vevent import VEvent

SEEDS = range(8)
ROWS = 40
STATEMENTS = 40
# Of MySQL, with the first version that has it.
MODES = {
    "": (8, 0, 0),
    "binlog_row_value_options = PARTIAL_JSON": (8, 0, 3),
    "binlog_transaction_compression = ON": (8, 0, 20),
}


def run(server: DatabaseFixture, name: str, table: RandomTable, *, alters: bool) -> None:
    """Make the table and change it at random, in one session."""
    rng = table.rng
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', names utf8mb4")
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        mode = rng.choice([mode for mode, since in MODES.items() if since <= server.version])
        if mode and server.flavor is Flavor.MYSQL and not table.plain:
            cursor.execute(f"SET {mode}")
        if server.flavor is Flavor.MARIADB:
            cursor.execute("SET column_compression_threshold = 10")
        cursor.execute(table.create())
        for first in range(0, ROWS, 5):
            cursor.execute(*table.insert(list(range(first, first + 5))))
        new = ROWS
        for _ in range(STATEMENTS):
            kind = rng.randrange(10)
            first = rng.randrange(ROWS)
            if kind < 6:
                cursor.execute(*table.update(first, first + rng.randrange(4)))
            elif kind < 8:
                cursor.execute("DELETE FROM t WHERE id = %s", (first,))
            elif kind == 8 and alters:
                cursor.execute(table.alter())
            else:
                cursor.execute(*table.insert([new, new + 1]))
                new += 2


def replayed(events: list[VEvent], table: RandomTable) -> dict[int, dict[str, Any]]:
    """The rows that stand after the changes, in the forms that a SELECT shows.

    Each image before must be what stood there; a column that was added since was NULL.
    """
    rows: dict[int, dict[str, Any]] = {}
    shown: dict[int, dict[str, Any]] = {}
    for event in events:
        if event.before is not None:
            stood = rows.pop(event.before["id"])
            assert event.before == {name: stood.get(name) for name in event.before}
            del shown[event.before["id"]]
        if event.after is not None:
            rows[event.after["id"]] = event.after
            shown[event.after["id"]] = event_to_json_dict(event)["after"]
    return {
        number: {c.name: c.read(row.get(c.name), shown[number].get(c.name)) for c in table.columns}
        for number, row in rows.items()
    }


def selected(server: DatabaseFixture, name: str, table: RandomTable) -> dict[int, dict[str, Any]]:
    """The rows as the server shows them."""
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', names utf8mb4")
        cursor.execute(table.select())
        names = [column.name for column in table.columns]
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cursor.fetchall()}


@pytest.mark.parametrize("seed", SEEDS)
def test_log_adds_up_to_what_a_select_shows(database: DatabaseFixture, seed: int) -> None:
    """Every type of the family, altered on the way: images before agree, and so does the end."""
    check_random_table(database, seed)


def check_random_table(database: DatabaseFixture, seed: int) -> None:
    """Change a random table and add up what the log says of it."""
    table = RandomTable(random.Random(seed), database.flavor, database.version, plain=False)
    name = database.new_database()
    before = executed_set(database)
    run(database, name, table, alters=True)
    typed = TypedColumns({f"{name}.t.{column}": kind for column, kind in table.hidden.items()})
    types = types_of(database, typed)
    stream = capture(database, before)
    sink, summary = decode(stream, database.flavor, before, hidden_types=types)
    rows = replayed([e for e in sink.events() if e.shape is not None], table)
    expected = selected(database, name, table)

    assert summary.position == executed_set(database)
    assert rows.keys() == expected.keys()
    for number, row in expected.items():
        assert rows[number] == row


@pytest.mark.parametrize("seed", range(3))
def test_mysql_replication_reads_the_same(mysql_a: DatabaseFixture, seed: int) -> None:
    """Of types that it decodes, every image of every change is the same.

    But for empty bytes, which it takes for empty text.
    """
    table = RandomTable(random.Random(1000 + seed), Flavor.MYSQL, mysql_a.version, plain=True)
    name = mysql_a.new_database()
    before = executed_set(mysql_a)
    file, position = binlog_end(mysql_a)
    run(mysql_a, name, table, alters=False)
    sink, _ = decode(capture(mysql_a, before), Flavor.MYSQL, before)
    mine = [(e.before, e.after) for e in sink.events() if e.shape is not None]
    second = list(islice(images_by_mysql_replication(mysql_a, name, file, position), len(mine)))

    assert len(mine) > ROWS
    assert [tuple(map(with_empty_text, pair)) for pair in second] == [
        tuple(map(with_empty_text, pair)) for pair in mine
    ]


def with_empty_text(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """The row with empty bytes as empty text."""
    return row and {name: "" if value == b"" else value for name, value in row.items()}
