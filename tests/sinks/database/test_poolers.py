"""What lies between a query and its database: poolers, proxies, and what a role has set."""

import os
import signal
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from databases.connection import open_connection
from databases.errors import ServerRefused
from databases.server import DatabaseServer
from sinks.database.database import SqlDatabase
from sinks.errors import TargetConflict
from tests.database_servers import DatabaseFixture
from tests.forks import WAIT_S_MAX
from tests.postgres_servers import PostgresFixture
from tests.producers.servers.proxy import VirtualAddress
from tests.sinks.database.followed import ITEMS, Followed, Item, batch, changes
from tests.sinks.database.mysql_targets import MysqlTargets
from tests.sinks.database.pgbouncer import PgBouncer
from tests.waiting import wait_for
from topics.records.table_shape import Column, ValueKind

# No character set of one byte has all of them, and in LATIN1 their bytes are other characters.
TEXT = "größe ☃ 東京"
AT = datetime(2026, 7, 1, 12, tzinfo=UTC)
SPAN_US = 22 * 3_600_000_000
# What a role, or a database, may have set.
OTHERS = ("client_encoding = 'LATIN1'", "TimeZone = 'Asia/Tokyo'", "IntervalStyle = 'sql_standard'")
FULL_SHAPE = replace(
    ITEMS,
    columns=(
        *ITEMS.columns,
        Column("doc", ValueKind.JSON, "json"),
        Column("at", ValueKind.TIMESTAMP, "timestamp(6)"),
        Column("span", ValueKind.TIME, "time(6)"),
    ),
)
VALUES = {"doc": f'{{"text": "{TEXT}"}}', "at": AT, "span": SPAN_US}
STORED = (
    "SELECT note, doc #>> '{text}', at = '2026-07-01 12:00:00+00', span = interval '22 hours' "
    "FROM shop.items"
)
KEPT = [(TEXT, TEXT, True, True)]


class WithoutOptions(VirtualAddress):
    """Drops the options of PostgreSQL's start message, as poolers do that ignore them."""

    def to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                (size,) = struct.unpack(">I", _exactly(client, 4))
                message = _exactly(client, size - 4)
                is_start = message[:2] == b"\0\3"  # version 3, not a question for TLS
                if is_start:
                    words = message[4:].rstrip(b"\0").split(b"\0")
                    named = zip(words[::2], words[1::2], strict=True)
                    kept = [b"\0".join(pair) + b"\0" for pair in named if pair[0] != b"options"]
                    message = message[:4] + b"".join(kept) + b"\0"
                server.sendall(struct.pack(">I", len(message) + 4) + message)
                if is_start:
                    break
        super().to_server(client, server)


class WithoutSessions(VirtualAddress):
    """Answers MySQL's SET SESSION itself, and passes on everything else."""

    def to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                head = _exactly(client, 4)
                packet = _exactly(client, int.from_bytes(head[:3], "little"))
                if packet.startswith(b"\x03SET SESSION "):
                    client.sendall(b"\7\0\0\1\0\0\0\2\0\0\0")
                else:
                    server.sendall(head + packet)


def _exactly(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            raise OSError
        found += part
    return found


def set_otherwise(followed: Followed) -> None:
    """Let the account's sessions begin with other settings."""
    for setting in OTHERS:
        followed.rows(f"ALTER ROLE {followed.login[0]} SET {setting}")


def apply_values(database: SqlDatabase) -> None:
    """Apply a batch with a row of every kind that depends on a session."""
    database.prepare()
    item = Item(1, 1, 100, note=TEXT, more=VALUES)
    with database.claimed():
        assert database.apply(batch(0), database.stage([changes([item], FULL_SHAPE)]))


def test_what_a_role_has_set_changes_no_value(postgres: PostgresFixture) -> None:
    """Between are what drops start options; texts would be stored as other characters."""
    followed = Followed(postgres)
    set_otherwise(followed)
    proxy = WithoutOptions(postgres)
    url = followed.url.replace(f":{postgres.port}/", f":{proxy.port}/")

    apply_values(SqlDatabase(url, followed.options))

    assert followed.rows(STORED) == KEPT
    proxy.close()


def test_the_lock_of_a_query_holds_up_nothing(followed: Followed) -> None:
    """It is a transaction's, which is open for as long as the query runs: it has no snapshot."""
    [(xid, xmin)] = followed.rows(
        f"SELECT backend_xid, backend_xmin FROM pg_stat_activity "
        f"WHERE usename = '{followed.login[0]}' AND state = 'idle in transaction'"
    )

    assert (xid, xmin) == (None, None)


def test_a_limit_of_idle_transactions_ends_no_lock(postgres: PostgresFixture) -> None:
    """The lock outlives what a role's idle transactions may take."""
    followed = Followed(postgres)
    followed.rows(f"ALTER ROLE {followed.login[0]} SET idle_in_transaction_session_timeout = 1000")
    followed.database.prepare()
    with followed.database.claimed():
        followed.rows("SELECT pg_sleep(1.2)")
        other = SqlDatabase(followed.url, followed.options)
        with pytest.raises(TargetConflict), other.claimed():
            pass


@pytest.fixture(params=["session", "transaction"])
def pooled(
    request: pytest.FixtureRequest, postgres: PostgresFixture, tmp_path: Path
) -> Iterator[tuple[Followed, str]]:
    """A target, and its URL through a pooler."""
    followed = Followed(postgres)
    pooler = PgBouncer(tmp_path / "pooler", postgres, request.param)
    pooler.allow(*followed.login)
    pooler.start()
    yield followed, pooler.url(followed.name, followed.login[0])
    pooler.kill()


@pytest.mark.full
def test_a_pooler_changes_no_value(pooled: tuple[Followed, str]) -> None:
    """PgBouncer drops start options, and gives each transaction the session of anybody."""
    followed, url = pooled
    set_otherwise(followed)

    apply_values(SqlDatabase(url, followed.options))

    assert followed.rows(STORED) == KEPT


@pytest.mark.full
def test_the_lock_of_a_killed_query_is_given_back_by_a_pooler(
    pooled: tuple[Followed, str],
) -> None:
    """While the first query lives, a second one is refused; its lock does not stay in the pool."""
    followed, url = pooled
    first, other = (SqlDatabase(url, followed.options) for _ in range(2))
    first.prepare()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(WAIT_S_MAX)  # also if the test is ended before it ends this process
        try:
            with first.claimed():
                os.write(tell, b"!")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(told, 1) == b"!"

    for _ in range(3):
        with pytest.raises(TargetConflict, match="another query writes"), other.claimed():
            pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    wait_for("the lock is given back", lambda: _claims(other))
    apply_values(other)


def _claims(database: SqlDatabase) -> bool:
    try:
        with database.claimed():
            return True
    except TargetConflict:
        return False


def test_a_session_that_was_not_set_is_refused(database: DatabaseFixture) -> None:
    """What a proxy does not pass on is asked back: times would move, and values be cut."""
    proxy = WithoutSessions(database)
    followed = Followed(MysqlTargets(database))
    server = DatabaseServer("127.0.0.1", proxy.port, *followed.login)
    url = followed.url.replace(f":{database.port}/", f":{proxy.port}/") + "?ssl_disabled=1"

    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL time_zone = '+09:00'")
    try:
        with pytest.raises(ServerRefused, match=r"time_zone = \+00:00, and has \+09:00"):
            open_connection(server)
        with pytest.raises(ServerRefused, match=r"sql_mode = STRICT_ALL_TABLES"):
            SqlDatabase(url, followed.options).prepare()
    finally:
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET GLOBAL time_zone = DEFAULT")
    proxy.close()
