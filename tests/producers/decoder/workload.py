"""A table of all types with random rows, and the server's own answer to compare with."""

import random
import string
from datetime import timedelta
from typing import Any

from event_token import Flavor
from tests.database_servers import DatabaseFixture

COLUMNS = (
    "id BIGINT PRIMARY KEY",
    "i1 TINYINT",
    "u1 TINYINT UNSIGNED",
    "i2 SMALLINT",
    "u2 SMALLINT UNSIGNED",
    "i3 MEDIUMINT",
    "u3 MEDIUMINT UNSIGNED",
    "i4 INT",
    "u4 INT UNSIGNED",
    "i8 BIGINT",
    "u8 BIGINT UNSIGNED",
    "f4 FLOAT",
    "f8 DOUBLE",
    "d1 DECIMAL(18,4)",
    "d2 DECIMAL(65,30)",
    "d3 DECIMAL(7,7)",
    "c1 CHAR(20) CHARACTER SET utf8mb4",
    "c2 VARCHAR(100) CHARACTER SET utf8mb4",
    "c3 VARCHAR(100) CHARACTER SET latin1",
    "c4 MEDIUMTEXT CHARACTER SET utf8mb3",
    "b1 BINARY(10)",
    "b2 VARBINARY(300)",
    "b3 LONGBLOB",
    "t1 DATE",
    "t2 TIME(6)",
    "t3 TIME",
    "t4 DATETIME(6)",
    "t5 DATETIME(2)",
    "t6 TIMESTAMP(6) NULL",
    "t7 YEAR",
    "e1 ENUM('a','b','ü')",
    "s1 SET('p','q','r','s','t','u','v','w','x','y')",
    "x1 BIT(1)",
    "x2 BIT(33)",
    "x3 BIT(64)",
    "j1 JSON",
)
NAMES = tuple(column.split()[0] for column in COLUMNS)


def _text(rng: random.Random, most: int, letters: str) -> str:
    # Trailing spaces are not part of a CHAR's value.
    return "".join(rng.choices(letters, k=rng.randint(0, most))).rstrip()


def _json(rng: random.Random, depth: int) -> str:
    choice = rng.randint(0, 8 if depth < 4 else 6)
    if choice == 7:
        members = {
            f'"{_text(rng, 300, string.ascii_letters)}{i}"' for i in range(rng.randint(0, 5))
        }
        return "{" + ", ".join(f"{name}: {_json(rng, depth + 1)}" for name in members) + "}"
    if choice == 8:
        return "[" + ", ".join(_json(rng, depth + 1) for _ in range(rng.randint(0, 40))) + "]"
    numbers = str(rng.randint(-(2**63), 2**64 - 1) >> rng.choice((0, 20, 32, 48, 60)))
    double = repr(rng.uniform(-1, 1) * 10.0 ** rng.randint(-30, 30))
    text = '"' + _text(rng, 400, "abc é€😀/") + '"'
    return [numbers, double, text, "true", "false", "null", '"\\"\\\\\\n\\u0001\\t"'][choice]


def random_row(rng: random.Random, number: int) -> tuple[Any, ...]:
    """Values of one row, in the order of the columns; each of them but the key is at times NULL."""
    unicode_letters = "abc XYZ é€😀ß中"
    bmp_letters = "abc XYZ é€ß中"
    time = timedelta(seconds=rng.randint(-3020399, 3020399), microseconds=rng.randint(0, 999999))
    day = f"{rng.randint(1, 9999):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    clock = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    stamp = f"{rng.randint(1971, 2037):04d}{day[4:]} {clock}.{rng.randint(0, 999999):06d}"
    values = (
        *(rng.randint(*span) for bits in (8, 16, 24, 32, 64) for span in _spans(bits)),
        rng.randint(-(2**20), 2**20) / 64,
        rng.uniform(-1, 1) * 10.0 ** rng.randint(-300, 300),
        f"{rng.randint(-(10**18) + 1, 10**18 - 1)}e-4",
        f"{rng.randint(-(10**65) + 1, 10**65 - 1)}e-30",
        f"{rng.randint(-(10**7) + 1, 10**7 - 1)}e-7",
        _text(rng, 20, unicode_letters),
        _text(rng, 100, unicode_letters),
        _text(rng, 100, "abc é€ÿŸ"),
        _text(rng, 3000, bmp_letters),
        rng.randbytes(rng.randint(0, 10)),
        rng.randbytes(rng.randint(0, 300)),
        rng.randbytes(rng.randint(0, 2000)),
        day,
        str(time) if time.days == 0 else time,
        timedelta(seconds=rng.randint(-3020399, 3020399)),
        f"{day} {clock}.{rng.randint(0, 999999):06d}",
        f"{day} {clock}.{rng.randint(0, 99):02d}",
        stamp,
        rng.choice((0, 1901, 2000, 2155)),
        rng.choice(("a", "b", "ü")),
        ",".join(name for name in "pqrstuvwxy" if rng.random() < 0.5),
        rng.randint(0, 1),
        rng.randint(0, 2**33 - 1),
        rng.randint(0, 2**64 - 1),
        _json(rng, 0),
    )
    return (number, *(None if rng.random() < 0.1 else value for value in values))


def _spans(bits: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), (0, 2**bits - 1)


def run_workload(database: DatabaseFixture, name: str, rows: int, seed: int) -> None:
    """Insert, change and delete random rows of table `t` in schema `name`."""
    rng = random.Random(seed)
    insert = f"INSERT INTO t VALUES ({','.join(['%s'] * len(COLUMNS))})"
    change = f"UPDATE t SET {','.join(f'{n}=%s' for n in NAMES[1:])} WHERE id=%s"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {name}")
        cursor.execute("SET time_zone='+00:00', names utf8mb4")
        cursor.execute(f"CREATE TABLE t({', '.join(COLUMNS)})")
        for number in range(rows):
            cursor.execute(insert, random_row(rng, number))
        for number in range(0, rows, 3):
            row = random_row(rng, number)
            cursor.execute(change, (*row[1:], row[0]))
        cursor.execute(f"DELETE FROM t WHERE id % 5 = 1 AND id < {rows}")


def selected_rows(database: DatabaseFixture, name: str) -> dict[int, dict[str, Any]]:
    """The table as the server shows it, FLOAT as the double that it is."""
    json_text = "CAST(j1 AS CHAR)" if database.flavor is Flavor.MYSQL else "j1"
    shown = ", ".join(
        {"f4": "f4 + 0e0", "j1": json_text, "s1": "CONCAT(s1, '')"}.get(n, n) for n in NAMES
    )
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone='+00:00', names utf8mb4")
        cursor.execute(f"SELECT {shown} FROM {name}.t")
        return {row[0]: dict(zip(NAMES, row, strict=True)) for row in cursor.fetchall()}
