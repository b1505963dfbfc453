"""A randomised load: writers that insert, change, move and delete rows of sharded tables."""

import functools
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from event_token import KeyRange, ShardName
from tests.database_servers import DatabaseFixture
from topics.keyspace.topology import TableVindex
from topics.keyspace.vindexes import vindex_named

WRITERS = 4
# Leaves the machine to the others: all that is written meanwhile is to be applied, too.
WRITE_PAUSE_S = 0.1
USERS = 500
TABLES = (
    """CREATE TABLE orders (id BIGINT NOT NULL, user_id BIGINT NOT NULL, code VARCHAR(40) NULL,
    amount DECIMAL(12,2) NOT NULL, note TEXT NULL, PRIMARY KEY (id), UNIQUE KEY code (code))""",
    """CREATE TABLE sessions (user_id BIGINT NOT NULL, name VARCHAR(20) NOT NULL,
    hits INT NOT NULL, PRIMARY KEY (user_id, name))""",
)


def vindexes_of(schema: str) -> tuple[TableVindex, ...]:
    """How the tables are sharded."""
    return tuple(TableVindex(schema, t, ("user_id",), "hash") for t in ("orders", "sessions"))


def shard_of(user_id: int, shards: Sequence[str]) -> str:
    """The shard that a user's rows belong to."""
    return _shard_of(user_id, tuple(shards))


@functools.cache
def _shard_of(user_id: int, shards: tuple[str, ...]) -> str:
    keyspace_id = vindex_named("hash").keyspace_id(user_id)
    [found] = [s for s in shards if ShardName.parse(s).key_range.contains(keyspace_id)]
    return found


def make_tables(database: DatabaseFixture, schema: str) -> None:
    """Make the schema and its tables."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {schema}")
        cursor.execute(f"USE {schema}")
        for statement in TABLES:
            cursor.execute(statement)


class Writer:
    """Writes transactions of its own ids to whatever shard a row belongs to."""

    def __init__(
        self,
        number: int,
        shards: dict[str, DatabaseFixture],
        schema: str,
        *,
        has_moves: bool = True,
    ) -> None:
        self._random = random.Random(number)
        self._number = number
        self._shards = shards
        self._schema = schema
        self._has_moves = has_moves
        self._next_id = number + 1
        self._users: dict[int, int] = {}  # of the orders that there are, by id
        self._hits: Counter[int] = Counter()  # of this writer's sessions, by user
        self._acknowledged = self._rows()  # what the last commit is known to have left
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            connections = {
                shard: d.connect(database=self._schema, autocommit=False)
                for shard, d in self._shards.items()
            }
            while not self.stop.wait(WRITE_PAUSE_S):
                self._transaction(connections)
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error

    def _rows(self) -> tuple[dict[int, int], Counter[int]]:
        return dict(self._users), Counter(self._hits)

    def _commit(self, connection: Any) -> None:
        connection.commit()
        self._acknowledged = self._rows()

    def _roll_back(self, connection: Any) -> None:
        connection.rollback()
        users, hits = self._acknowledged
        self._users, self._hits = dict(users), Counter(hits)

    def _transaction(self, connections: dict[str, Any]) -> None:
        shard = self._random.choice(list(connections))
        connection = connections[shard]
        try:
            with connection.cursor() as cursor:
                for _ in range(self._random.choice((1, 1, 1, 2, 5, 20))):
                    self._change(cursor, shard)
            if self._random.random() < 0.05:
                self._roll_back(connection)
            else:
                self._commit(connection)
        except pymysql.err.OperationalError as error:
            if error.args[0] not in {1205, 1213}:
                raise
            self._roll_back(connection)
        has_moves = self._has_moves and len(connections) > 1 and self._users
        if has_moves and self._random.random() < 0.2:
            self._move(connections)

    def _user_of(self, shard: str) -> int:
        while True:
            user = self._random.randrange(USERS)
            if shard_of(user, list(self._shards)) == shard:
                return user

    def _change(self, cursor: Any, shard: str) -> None:
        chosen = self._random.random()
        here = [i for i, u in self._users.items() if shard_of(u, list(self._shards)) == shard]
        if chosen < 0.25:
            user = self._user_of(shard)
            self._hits[user] += 1
            cursor.execute(
                "INSERT INTO sessions VALUES (%s, %s, 1) ON DUPLICATE KEY UPDATE hits = hits + 1",
                (user, f"w{self._number}"),
            )
        elif chosen < 0.55 or not here:
            self._insert(cursor, self._next_id, self._user_of(shard))
            self._next_id += WRITERS
        else:
            self._alter(cursor, self._random.choice(here), shard)

    def _alter(self, cursor: Any, order: int, shard: str) -> None:
        """Change a row, its sharding column, its key or its unique value; or delete it."""
        what = self._random.randrange(6)
        if what == 0:
            cursor.execute("UPDATE orders SET amount = amount + 1.01 WHERE id = %s", (order,))
        elif what == 1:
            self._users[order] = self._user_of(shard)
            cursor.execute(
                "UPDATE orders SET user_id = %s WHERE id = %s", (self._users[order], order)
            )
        elif what == 2:
            self._users[self._next_id] = self._users.pop(order)
            cursor.execute("UPDATE orders SET id = %s WHERE id = %s", (self._next_id, order))
            self._next_id += WRITERS
        elif what == 3:
            # The unique value goes to another row: deleted here, inserted there, at once.
            del self._users[order]
            cursor.execute("SELECT code FROM orders WHERE id = %s", (order,))
            [(code,)] = cursor.fetchall()
            cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
            self._insert(cursor, self._next_id, self._user_of(shard), code)
            self._next_id += WRITERS
        else:
            del self._users[order]
            cursor.execute("DELETE FROM orders WHERE id = %s", (order,))

    def _insert(self, cursor: Any, order: int, user: int, code: str | None = None) -> None:
        self._users[order] = user
        cursor.execute(
            "INSERT INTO orders VALUES (%s, %s, %s, %s, %s)",
            (order, user, code or f"code-{order}", self._random.randrange(10**6) / 100, "é" * 20),
        )

    def _move(self, connections: dict[str, Any]) -> None:
        """Move a row to another shard: deleted on one, then inserted on the other."""
        order, user = self._random.choice(list(self._users.items()))
        here = shard_of(user, list(self._shards))
        there = self._random.choice([s for s in self._shards if s != here])
        with connections[here].cursor() as cursor:
            cursor.execute("SELECT code FROM orders WHERE id = %s", (order,))
            [(code,)] = cursor.fetchall()
            cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
        del self._users[order]
        self._commit(connections[here])
        with connections[there].cursor() as cursor:
            self._insert(cursor, order, self._user_of(there), code)
        self._commit(connections[there])


@contextmanager
def writing(shards: dict[str, DatabaseFixture], schema: str) -> Iterator[None]:
    """Four writers at work until the end of the block."""
    with at_work([Writer(n, shards, schema) for n in range(WRITERS)]):
        yield


@contextmanager
def at_work(writers: Sequence[Writer]) -> Iterator[None]:
    """Let writers write until the end of the block; the error of one is raised there."""
    for writer in writers:
        writer.thread.start()
    try:
        yield
    finally:
        for writer in writers:
            writer.stop.set()
        for writer in writers:
            writer.thread.join(120)
    for writer in writers:
        assert not writer.thread.is_alive()
        if writer.error is not None:
            raise writer.error


def rows_of(
    shards: dict[str, DatabaseFixture], schema: str, *, within: KeyRange | None = None
) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of the tables over some shards, of a key range, sorted; the user comes first."""
    found: dict[str, list[tuple[Any, ...]]] = {"orders": [], "sessions": []}
    hashed = vindex_named("hash")
    for database in shards.values():
        with database.connect(database=schema) as connection, connection.cursor() as cursor:
            for table, rows in found.items():
                cursor.execute(f"SELECT user_id, t.* FROM {table} t")
                rows += [
                    row
                    for row in cursor.fetchall()
                    if within is None or within.contains(hashed.keyspace_id(row[0]))
                ]
    return {table: sorted(rows) for table, rows in found.items()}
