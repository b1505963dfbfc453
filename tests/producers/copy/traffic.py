"""Writers on tables of several key types: insert, update, change of key, delete, re-insert."""

import itertools
import random
import threading
from typing import Any, Self

import pymysql

from event_token import Flavor
from tests.database_servers import DatabaseFixture

# By table: its definition, its key, and the i-th key's values.
TABLES: dict[str, tuple[str, list[str]]] = {
    "ints": ("id INT PRIMARY KEY", ["id"]),
    "pairs": ("a BIGINT UNSIGNED, b INT, PRIMARY KEY (b, a)", ["b", "a"]),
    "words": ("k VARCHAR(40) COLLATE utf8mb4_unicode_ci PRIMARY KEY", ["k"]),
    "raws": ("k VARBINARY(16) PRIMARY KEY", ["k"]),
    "times": ("at DATETIME(6) NOT NULL, n CHAR(3) NOT NULL, UNIQUE KEY (n, at)", ["n", "at"]),
}
# MariaDB adds a hidden column for it.
LONG_UNIQUE = ", doc TEXT, UNIQUE KEY (doc)"
WORDS = ("Äpfel", "apfel", "Zoo", "zoo-", "éa", "E", "ß", "straße", "", "ñ")


def key_of(table: str, i: int) -> tuple[str, ...]:
    """Return the i-th key's values as literals, in key order."""
    if table == "ints":
        return (str(i - 300),)
    if table == "pairs":
        return (str(i % 7 - 3), str((1 << 64) - 1 - i * 10**15))
    if table == "words":
        return (f"'{WORDS[i % len(WORDS)]}{i * 7919 % 1000:03d}'",)
    if table == "raws":
        return (f"X'{(i * 40503 % 65536):04x}{i:04x}'",)
    return (f"'{'abcdef'[i % 6]}'", f"'2024-02-{i % 28 + 1:02d} 10:00:00.{i:06d}'")


class Traffic:
    """Writers that run until stopped. Column `v` gets a different number at each write."""

    def __init__(
        self, database: DatabaseFixture, name: str, *, keys: int, seed: int, pause_s: float = 0.02
    ) -> None:
        """Create the tables and fill them. `pause_s`: of each writer between transactions."""
        self._pause_s = pause_s
        self._database = database
        self._name = name
        self._keys = keys
        self._seed = seed
        self._versions = itertools.count(1)
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.transactions = 0
        self.errors: list[BaseException] = []
        with database.connect(database=name) as connection, connection.cursor() as cursor:
            for table, (columns, key) in TABLES.items():
                more = LONG_UNIQUE if database.flavor is Flavor.MARIADB else ""
                cursor.execute(
                    f"CREATE TABLE {table} ({columns}, v BIGINT, pad VARCHAR(200){more})"
                )
                names = ", ".join([*key, "v", "pad"])
                rows = ", ".join(
                    f"({', '.join(key_of(table, i))}, {next(self._versions)}, 'first')"
                    for i in range(0, keys, 2)
                )
                cursor.execute(f"INSERT INTO {table} ({names}) VALUES {rows}")

    def _run(self, number: int) -> None:
        draw = random.Random(self._seed + number)
        try:
            with self._database.connect(database=self._name, autocommit=False) as connection:
                while not self._stop.is_set():
                    try:
                        self._transaction(connection, draw)
                    except pymysql.err.MySQLError as error:
                        connection.rollback()
                        # Deadlock, lock wait, duplicate key, snapshot too old (MariaDB).
                        if error.args[0] not in {1213, 1205, 1062, 1020}:
                            raise
                    self._stop.wait(self._pause_s)
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.errors.append(error)

    def _transaction(self, connection: Any, draw: random.Random) -> None:
        with connection.cursor() as cursor:
            for _ in range(draw.choice((1, 1, 2, 5))):
                self._change(cursor, draw, draw.choice(list(TABLES)))
        connection.commit()
        self.transactions += 1

    def _change(self, cursor: Any, draw: random.Random, table: str) -> None:
        key = TABLES[table][1]
        values = key_of(table, draw.randrange(self._keys))
        is_row = " AND ".join(f"{k} = {v}" for k, v in zip(key, values, strict=True))
        version = next(self._versions)
        action = draw.random()
        names = ", ".join([*key, "v", "pad"])
        insert = f"REPLACE INTO {table} ({names}) VALUES ({', '.join(values)}, {version}, 'in')"
        if action < 0.25:
            cursor.execute(insert)
        elif action < 0.5:
            cursor.execute(
                f"UPDATE {table} SET v = {version}, pad = REPEAT('u', {version % 200}) "
                f"WHERE {is_row}"
            )
        elif action < 0.65:
            other = key_of(table, draw.randrange(self._keys))
            moved = ", ".join(f"{k} = {v}" for k, v in zip(key, other, strict=True))
            cursor.execute(f"UPDATE {table} SET {moved}, v = {version} WHERE {is_row}")
        elif action < 0.85:
            cursor.execute(f"DELETE FROM {table} WHERE {is_row}")
        else:
            cursor.execute(f"DELETE FROM {table} WHERE {is_row}")
            cursor.execute(insert)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(4)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        if self.errors:
            raise self.errors[0]
