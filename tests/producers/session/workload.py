"""A write load for tests that kill what they write to, and what the log must be afterwards."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pymysql

from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import (
    ProducerProcess,
    check_log,
    check_progress,
    read_log,
    replay,
    table_rows,
)

SEED = 20261121
KEYS = 500


class Workload:
    """Transactions of one to forty rows until the block ends; reconnects after restarts.

    `pause_s`: between them. The checks read the whole log: a few thousand rows say as much as a
    million.
    """

    def __init__(self, database: DatabaseFixture, name: str, *, pause_s: float = 0.03) -> None:
        self._pause_s = pause_s
        self._database = database
        self._name = name
        self._random = random.Random(SEED)
        self._end = threading.Event()
        self.committed = 0
        with database.connect(database=name) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT, pad VARCHAR(200))")
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                connection = self._database.connect(database=self._name, autocommit=False)
            except pymysql.err.OperationalError:
                self._end.wait(0.1)  # The server is away on purpose.
                continue
            try:
                while not self._end.is_set():
                    self._transaction(connection)
                    self._end.wait(self._pause_s)
            except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
                continue
            finally:
                if connection.open:
                    connection.close()

    def _transaction(self, connection: "pymysql.Connection[pymysql.cursors.Cursor]") -> None:
        draw = self._random
        with connection.cursor() as cursor:
            for _ in range(draw.choice((1, 1, 1, 2, 5, 40))):
                key, value = draw.randrange(KEYS), draw.randrange(1000)
                if draw.random() < 0.7:
                    cursor.execute(
                        f"INSERT INTO t VALUES ({key}, {value}, REPEAT('x', {value % 200})) "
                        "ON DUPLICATE KEY UPDATE v = VALUES(v), pad = VALUES(pad)"
                    )
                else:
                    cursor.execute(f"DELETE FROM t WHERE id = {key}")
            connection.commit()
            self.committed += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(60)


@contextmanager
def process(settings: ShardProducerSettings, kill_at: str = "") -> Iterator[ProducerProcess]:
    """A producer's process, killed at the end; `kill_at` names a point where it kills itself."""
    producer = ProducerProcess(settings, kill_at=kill_at)
    try:
        yield producer
    finally:
        producer.kill()


def check_all(settings: ShardProducerSettings, database: DatabaseFixture, name: str) -> None:
    """The log holds each change once and in order, and its rows are the table's."""
    log = read_log(settings)
    check_log(log)
    check_progress(log)
    assert replay(log, name, "t") == table_rows(database, name, "t")
    assert log.events
