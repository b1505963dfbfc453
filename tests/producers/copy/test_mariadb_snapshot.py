"""What a chunk's snapshot on MariaDB contains, as the server reports it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from producers.copy.chunk_reader import MariadbSnapshot
from tests.database_servers import DatabaseFixture
from tests.waiting import WAIT_S
from topics.kafka.client import Deadline

# Until the test lets the commit go on.
HELD_MS = 600_000


@contextmanager
def commits_held(database: DatabaseFixture) -> Iterator[None]:
    """Each commit waits between binlog and rows, for a replica that never answers."""
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'")
        cursor.execute(f"SET GLOBAL rpl_semi_sync_master_timeout = {HELD_MS}")
        cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = ON")
        try:
            yield
        finally:
            cursor.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")


def test_what_the_binlog_has_but_nobody_sees_is_not_in_the_snapshot(
    mariadb_a: DatabaseFixture,
) -> None:
    """A snapshot during a commit held between binlog and table is not the binlog's end."""
    name = mariadb_a.new_database()
    with mariadb_a.connect(database=name) as writer, mariadb_a.connect(database=name) as reader:
        asking = writer.cursor()
        asking.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        insert = threading.Thread(target=lambda: asking.execute("INSERT INTO t VALUES (1)"))
        snapshot, cursor = MariadbSnapshot(), reader.cursor()

        def position() -> str:
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
            return str(cursor.fetchall()[0][0])

        def seen() -> tuple[bool, int]:
            """Return whether the snapshot is taken for the position, and how many rows it shows."""
            begun = snapshot.begin(reader, position())
            cursor.execute("SELECT COUNT(*) FROM t")
            [(rows,)] = cursor.fetchall()
            snapshot.end(reader)
            return begun is None, rows

        before = position()
        assert seen() == (True, 0)
        with commits_held(mariadb_a):
            # Without a rest: what the server tells of open transactions it keeps while it is asked.
            seen()
            insert.start()
            deadline = Deadline(WAIT_S)
            while position() == before:
                seen()
                assert not deadline.passed
            assert seen() == (False, 0)
        insert.join()
        assert seen() == (True, 1)
