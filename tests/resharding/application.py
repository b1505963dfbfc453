"""An application: writers that follow the topology and remember what was acknowledged."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pymysql

from event_token import KeyRange
from tests.database_servers import DatabaseFixture
from tests.resharding.switchable import app_session
from tests.resharding.writers import USERS, WRITERS, Writer
from topics.keyspace.vindexes import vindex_named

OLD_ORDERS = 1_200
OLD_VISITORS = 50  # users whose sessions the writers go on with
OLD_HITS = 7
PAUSE_S = 0.2  # leaves the machine to the commands
RETRY_S = 0.05
# Locked out on either family, connection lost or refused, shutdown, killed, a lock not had,
# read-only by now.
REFUSED = frozenset({0, 1053, 1205, 1213, 1290, 1317, 1836, 1927, 2003, 2006, 2013, 3118, 4151})
EVERYTHING = KeyRange.parse("-")


def write_old_rows(
    database: DatabaseFixture, schema: str, *, within: KeyRange = EVERYTHING
) -> None:
    """Write the rows that the tables hold before the test begins, those of a key range."""
    hashed = vindex_named("hash")
    users = [user for user in range(USERS) if within.contains(hashed.keyspace_id(user))]
    here = set(users)
    orders = [
        (i, i % USERS, f"code-{i}", i % 90, "old")
        for i in range(1, OLD_ORDERS + 1)
        if i % USERS in here
    ]
    sessions = [(user, "s0", 0) for user in users]
    visitors = [user for user in users if user < OLD_VISITORS]
    sessions += [(u, f"w{n}", OLD_HITS) for u in visitors for n in range(WRITERS)]
    with database.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders VALUES (%s, %s, %s, %s, %s)", orders)
        cursor.executemany("INSERT INTO sessions VALUES (%s, %s, %s)", sessions)


class FollowingWriter(Writer):
    """Writes to the serving shards; when refused, looks them up again and retries.

    After each refusal it checks that the servers have everything that was acknowledged, and nothing
    else except the transaction whose outcome is unknown.
    """

    def __init__(
        self,
        number: int,
        servers: Mapping[str, DatabaseFixture],
        schema: str,
        serving: Callable[[], Sequence[str]],
        *,
        has_moves: bool = True,
    ) -> None:
        super().__init__(number, {}, schema, has_moves=has_moves)
        self._servers = servers
        self._serving = serving
        self._users = {i: i % USERS for i in range(number + 1, OLD_ORDERS + 1, WRITERS)}
        self._hits = Counter(dict.fromkeys(range(OLD_VISITORS), OLD_HITS))
        self._next_id = OLD_ORDERS + number + 1
        self._acknowledged = self._rows()
        self.refusals: list[str] = []
        # Transactions, by the shards that served.
        self.done: Counter[tuple[str, ...]] = Counter()

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    self._write()
                except pymysql.err.MySQLError as error:
                    if error.args[0] not in REFUSED:
                        raise
                    self.refusals.append(str(error))
                self.stop.wait(RETRY_S)
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.error = error

    def _write(self) -> None:
        """Write until told to stop, or refused."""
        with ExitStack() as stack:
            connections = {}
            for shard in self._serving():
                connection = connections[shard] = app_session(self._servers[shard])
                stack.callback(connection._force_close)  # it may be lost
                connection.autocommit(False)
                connection.select_db(self._schema)
            self._shards = {shard: self._servers[shard] for shard in connections}
            self._compare(connections)
            while not self.stop.wait(PAUSE_S):
                self._transaction(connections)
                self.done[tuple(sorted(connections))] += 1

    def _compare(self, connections: Mapping[str, Any]) -> None:
        """Take over what the servers have; it must be what was acknowledged or asked for."""
        users: dict[int, int] = {}
        hits: Counter[int] = Counter()
        for connection in connections.values():
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT id, user_id FROM orders WHERE (id - 1) %% %s = %s",
                    (WRITERS, self._number),
                )
                users |= dict(cursor.fetchall())
                cursor.execute(
                    "SELECT user_id, hits FROM sessions WHERE name = %s", (f"w{self._number}",)
                )
                hits |= Counter(dict(cursor.fetchall()))
            connection.commit()
        found = (users, hits)
        assert found in (self._acknowledged, self._rows()), (
            f"writer {self._number}: of what was acknowledged the servers lack "
            f"{self._acknowledged[0].items() - users.items()} and "
            f"{self._acknowledged[1].items() - hits.items()}; they have besides "
            f"{users.items() - self._acknowledged[0].items()} and "
            f"{hits.items() - self._acknowledged[1].items()}"
        )
        self._users, self._hits = users, hits
        self._acknowledged = self._rows()
