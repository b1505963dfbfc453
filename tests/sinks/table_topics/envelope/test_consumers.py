import json
from collections import Counter
from typing import Any

from sinks.table_topics.options import Decimals, EnvelopeOptions, Times
from tests.database_servers import DatabaseFixture
from tests.sinks.table_topics.envelope.topic_messages import messages_of, records_of

OPTIONS = EnvelopeOptions("shop", "p", decimal=Decimals.STRING, time=Times.ISOSTRING)
COLUMNS = ("id", "region", "amount", "note")
STATEMENTS = (
    """CREATE TABLE orders (id INT, region VARCHAR(10), amount DECIMAL(10,2), note TEXT,
       PRIMARY KEY (id, region))""",
    """INSERT INTO orders VALUES (1, 'eu', 1.50, 'a'), (2, 'eu', NULL, 'b \\\\ "c"'),
       (3, 'us', -0.05, NULL), (4, 'us', 7, '')""",
    "UPDATE orders SET amount = amount * 2 WHERE id < 3",
    "UPDATE orders SET region = 'asia' WHERE id = 2",
    "DELETE FROM orders WHERE id = 3",
    "INSERT INTO orders VALUES (3, 'us', 9, 'again')",
    "UPDATE orders SET id = id + 10 WHERE id = 4",
)


def flink_rows(values: list[bytes | None]) -> Counter[tuple[Any, ...]]:
    """The rows of a table in Flink, by the rules of its format debezium-json.

    An empty message is passed. `c` and `r` insert `after`, `u` retracts `before` and inserts
    `after`, `d` retracts `before`; a missing image and any other op are errors.
    """
    rows: Counter[tuple[Any, ...]] = Counter()
    for value in values:
        if not value:
            continue
        event = json.loads(value)
        match event["op"]:
            case "c" | "r":
                changes = [(event["after"], 1)]
            case "u":
                changes = [(event["before"], -1), (event["after"], 1)]
            case "d":
                changes = [(event["before"], -1)]
            case other:
                raise AssertionError(other)
        for image, count in changes:
            row = tuple(image[name] for name in COLUMNS)
            rows[row] += count
            assert rows[row] >= 0, "a row that was never inserted is retracted"
    return +rows


def test_flink_and_compaction_give_the_tables_rows(database: DatabaseFixture) -> None:
    """Read as Flink or as ksqlDB's tables do, the messages give the rows of the server."""
    [(shape, rows)] = records_of(database, STATEMENTS)

    messages = messages_of(shape, rows, OPTIONS)

    with database.connect(database=shape.database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(COLUMNS)} FROM orders")
        stored = {
            (number, region, None if amount is None else str(amount), note)
            for number, region, amount, note in cursor.fetchall()
        }
    assert flink_rows([m.value for m in messages]) == dict.fromkeys(stored, 1)
    compacted = {m.key: m.value for m in messages}
    last = [json.loads(value)["after"] for value in compacted.values() if value is not None]
    assert {tuple(row[name] for name in COLUMNS) for row in last} == stored
