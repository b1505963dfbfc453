"""A power cut that makes a server forget what it wrote last."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from databases.sql import rows
from producers.settings import ShardProducerSettings
from tests.database_servers import DatabaseFixture
from tests.producers.session.producing import producing, wait_caught_up
from tests.stopped_process import stopped


@contextmanager
def losing_what_follows(database: DatabaseFixture, folder: Path) -> Iterator[None]:
    """A power cut that loses all that the server has written to its disk in this block."""
    server = database.server
    pid = server.pid
    assert pid is not None
    with stopped(pid):
        shutil.copytree(server.datadir, folder, ignore=shutil.ignore_patterns("*.sock*"))
    yield
    server.kill()
    shutil.rmtree(server.datadir)
    folder.rename(server.datadir)
    server.start()


def clock_s(database: DatabaseFixture) -> int:
    """The server's clock in whole seconds, as MariaDB's commit times are."""
    with database.connect() as connection:
        return int(rows(connection, "SELECT UNIX_TIMESTAMP()")[0][0])


def produce_and_stop(settings: ShardProducerSettings) -> str:
    """Let a producer catch up; return all that it noted."""
    with producing(settings) as producer:
        wait_caught_up(settings)
    return "; ".join(status.note for status in producer.statuses)
