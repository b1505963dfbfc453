"""Random changes of parts of JSON documents, against what the server shows after each."""

import json
import random
from typing import Any

from tests.database_servers import DatabaseFixture
from tests.producers.decoder.binlog_events import kind_of
from tests.producers.decoder.capture import capture, executed_set, packets_of
from tests.producers.decoder.decoding import decode

PARTIAL_UPDATE_ROWS = 39
CHANGES = 250
KEYS = ("a", "bb", "k e y", "ü", 'q"t', "", "x.y[0]", "ccccccccccc")
SEED = 20261121


def scalar(rng: random.Random) -> Any:
    return rng.choice(
        (
            None,
            True,
            rng.randint(-(2**63), 2**63),
            rng.randint(-9, 70_000),
            rng.uniform(-1e9, 1e9),
            "é" * rng.randint(0, 300),
        )
    )


def document(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(3) if depth < 3 else 2
    if kind == 0:
        return {key: document(rng, depth + 1) for key in rng.sample(KEYS, rng.randint(0, 5))}
    if kind == 1:
        return [document(rng, depth + 1) for _ in range(rng.randint(0, 5))]
    return scalar(rng)


def path(rng: random.Random) -> str:
    legs = ["$"]
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            legs.append("." + json.dumps(rng.choice(KEYS), ensure_ascii=False))
        else:
            legs.append(f"[{rng.randint(0, 4)}]")
    return "".join(legs)


def test_random_changes_give_what_the_server_shows(mysql_a: DatabaseFixture) -> None:
    """F20: Changes of all kinds at random places; each image after is the table's."""
    rng = random.Random(SEED)
    name = mysql_a.new_database()
    before = executed_set(mysql_a)
    shown: list[str] = []
    with mysql_a.connect(database=name) as connection, connection.cursor() as cursor:
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, j JSON, pad JSON)")
        cursor.execute("INSERT INTO t VALUES (1, 0, NULL, '[]')")
        for number in range(CHANGES):
            if number % 10 == 0:
                pad = {"pad": "p" * 2000, "a": document(rng), "bb": document(rng), "l": [1, 2, 3]}
                cursor.execute("UPDATE t SET j = %s, n = -n - 1", (json.dumps(pad),))
                cursor.execute("SELECT CAST(j AS CHAR) FROM t")
                shown.append(cursor.fetchall()[0][0])
            verb = rng.choice(("SET", "SET", "INSERT", "REPLACE", "REMOVE", "ARRAY_APPEND"))
            value = json.dumps(document(rng), ensure_ascii=False)
            arguments = (path(rng),) if verb == "REMOVE" else (path(rng), value)
            values = "%s" if verb == "REMOVE" else "%s, CAST(%s AS JSON)"
            cursor.execute(f"UPDATE t SET j = JSON_{verb}(j, {values}), n = {number}", arguments)
            cursor.execute("SELECT CAST(j AS CHAR) FROM t")
            shown.append(cursor.fetchall()[0][0])
    stream = capture(mysql_a, before)
    sink, _ = decode(stream, mysql_a.flavor, before)
    updates = [event for event in sink.events() if event.before is not None]

    assert sum(kind_of(p) == PARTIAL_UPDATE_ROWS for p in packets_of(stream)) > CHANGES // 2
    assert [event.after["j"] for event in updates if event.after] == shown
    assert [event.before["j"] for event in updates if event.before] == [None, *shown[:-1]]
