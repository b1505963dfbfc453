"""A target answers COMMIT with an error: it may have committed, or not."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from event_token.errors import Retry
from shardstream.local.database_server import NOT_DURABLE, MysqlServer
from sinks.errors import DatabaseRefuses
from tests.database_servers import DatabaseFixture, own_account
from tests.faults.disks import filled, small_disk
from tests.postgres_servers import PostgresFixture
from tests.server_error_codes import error_statement
from tests.sinks.database.followed import EVERYWHERE, Followed, Item, batch, changes
from tests.sinks.database.mysql_targets import MysqlTargets

ONE = Item(1, 1, 100, note="a")
TWO = Item(1, 2, 200, note="b")
# The server ends itself as it cannot write its binlog; the engine fails to commit; a replication
# group refuses; shutdown; read-only since a failover.
OUTAGES = ("1598", "1180", "3101", "1053", "1836")
UNKNOWN = "1105"
OUTAGE_STATES = ("57P01", "53100", "58030")
UNKNOWN_STATE = "XX000"


def codes_of(followed: Followed) -> tuple[tuple[str, ...], str]:
    """Return the codes of outages, and one that nobody expects from a COMMIT."""
    if isinstance(followed.server, PostgresFixture):
        return OUTAGE_STATES, UNKNOWN_STATE
    return OUTAGES, UNKNOWN


def statement_of(followed: Followed, code: str) -> str:
    """Return the statement that a server answers with an error."""
    if isinstance(followed.server, PostgresFixture):
        return f"DO $$ BEGIN RAISE EXCEPTION 'said' USING ERRCODE = '{code}'; END $$"
    return error_statement(int(code))


@contextmanager
def answered(followed: Followed, number: int, code: str, *, has_committed: bool) -> Iterator[None]:
    """Let the server answer the COMMIT of a batch with an error, after it or instead of it."""
    engine = followed.database._open()
    answers: list[int] = []

    def fail(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if answers or not followed.moves_position(driver.cursor(), number):
            return
        commit: Callable[[], None] = driver.commit

        def commit_fails() -> None:
            driver.commit = commit
            if has_committed:
                commit()
            answers.append(1)
            driver.cursor().execute(statement_of(followed, code))

        driver.commit = commit_fails

    event.listen(engine, "commit", fail)
    try:
        yield
    finally:
        event.remove(engine, "commit", fail)
    assert answers


@EVERYWHERE
def test_an_error_of_commit_is_looked_up(followed: Followed) -> None:
    """F34: whatever a server answers to COMMIT, a batch that is in the target counts as applied."""
    outages, unknown = codes_of(followed)
    codes = (*outages, unknown)
    for number, code in enumerate(codes):
        staged = followed.database.stage([changes([Item(number, 1, 100, note=code)])])
        with answered(followed, number, code, has_committed=True):
            assert followed.database.apply(batch(number), staged)

    assert followed.rows("SELECT count(*) FROM shop.items") == [(len(codes),)]


@EVERYWHERE
def test_a_commit_that_an_outage_undid_is_tried_again(followed: Followed) -> None:
    """F34: a server that ends or refuses for a while asks for another try; other errors stop."""
    outages, unknown = codes_of(followed)
    staged = followed.database.stage([changes([ONE])])
    for code in outages:
        with answered(followed, 0, code, has_committed=False), pytest.raises(Retry, match="said"):
            followed.database.apply(batch(0), staged)
    with (
        answered(followed, 0, unknown, has_committed=False),
        pytest.raises(DatabaseRefuses, match="said"),
    ):
        followed.database.apply(batch(0), staged)
    assert followed.database.held() is None

    followed.apply([ONE])
    followed.apply([TWO])
    followed.check()


# MySQL keeps up to 32 KB of a transaction in memory, and writes the rest to a file until COMMIT.
ROWS = 500
TEMPORARY_BYTES = 16 * 1024 * 1024


@pytest.mark.full
def test_a_server_that_ends_itself_in_commit_is_asked_again(
    real_servers: None, tmp_path: Path
) -> None:
    """F42: MySQL ends itself if COMMIT has no room for its log; then the batch is applied once."""
    many = [Item(i, i, 200 + i, note=str(i) * 10) for i in range(1, ROWS)]
    with small_disk(tmp_path / "tmp", TEMPORARY_BYTES) as disk:
        disk.chmod(0o777)
        server = MysqlServer(
            tmp_path / "server",
            server_id=9302,
            account=own_account(),
            extra_args=(*NOT_DURABLE, f"--tmpdir={disk}"),
            die_with_parent=True,
        )
        try:
            server.start()
            followed = Followed(MysqlTargets(DatabaseFixture(server)))
            followed.database.prepare()
            staged = followed.database.stage([changes(many)])
            # Its last words may not arrive.
            ends = pytest.raises(Retry, match=r"Server is being stopped|Lost connection")
            with full_at_commit(followed, disk), ends:
                followed.database.apply(batch(0), staged)
            server.kill()  # wait for its end
            server.start()

            followed.apply(many)

            followed.check()
        finally:
            server.kill()


@contextmanager
def full_at_commit(followed: Followed, disk: Path) -> Iterator[None]:
    """Fill a disk where the first batch is about to be committed."""
    engine = followed.database._open()
    with ExitStack() as stack:

        def fill(connection: Connection) -> None:
            driver: Any = connection.connection.driver_connection
            if followed.moves_position(driver.cursor(), 0):
                stack.enter_context(filled(disk, 0))

        event.listen(engine, "commit", fill)
        try:
            yield
        finally:
            event.remove(engine, "commit", fill)
