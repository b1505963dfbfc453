"""Random changes of a random table, and the log of them against a SELECT."""

import random
from typing import Any

from event_token import Flavor
from producers.typed_columns import TypedColumns
from tests.database_servers import DatabaseFixture
from tests.producers.decoder.capture import capture, executed_set
from tests.producers.decoder.decoding import catalog_of, decode
from tests.producers.decoder.random_tables import RandomTable
from topics.records.event_json import event_to_json_dict
from topics.records.vevent import VEvent

ROWS = 40
STATEMENTS = 40
# Of MySQL, with the first version that has it.
MODES = {
    "": (8, 0, 0),
    "binlog_row_value_options = PARTIAL_JSON": (8, 0, 3),
    "binlog_transaction_compression = ON": (8, 0, 20),
}


def change_at_random(
    server: DatabaseFixture, name: str, table: RandomTable, *, alters: bool
) -> None:
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


def _replayed(events: list[VEvent], table: RandomTable) -> dict[int, dict[str, Any]]:
    """Return the rows after all changes, as a SELECT shows them.

    Each image before must equal the row that was there; a column added since was NULL.
    """
    rows: dict[Any, dict[str, Any]] = {}
    shown: dict[Any, dict[str, Any]] = {}
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


def _selected(server: DatabaseFixture, name: str, table: RandomTable) -> dict[int, dict[str, Any]]:
    """The rows as the server shows them."""
    with server.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', names utf8mb4")
        cursor.execute(table.select())
        names = [column.name for column in table.columns]
        return {row[0]: dict(zip(names, row[1:], strict=True)) for row in cursor.fetchall()}


def check_random_table(database: DatabaseFixture, seed: int) -> None:
    """Change a random table, and compare what its log adds up to with a SELECT."""
    table = RandomTable(random.Random(seed), database.flavor, database.version, plain=False)
    name = database.new_database()
    before = executed_set(database)
    change_at_random(database, name, table, alters=True)
    typed = TypedColumns({f"{name}.t.{column}": kind for column, kind in table.hidden.items()})
    catalog = catalog_of(database, typed)
    stream = capture(database, before)
    sink, summary = decode(stream, database.flavor, before, catalog=catalog)
    rows = _replayed([e for e in sink.events() if e.shape is not None], table)
    expected = _selected(database, name, table)

    assert summary.position == executed_set(database)
    assert rows.keys() == expected.keys()
    for number, row in expected.items():
        assert rows[number] == row
