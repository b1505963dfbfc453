"""The disk of a MySQL or MariaDB target fills up at each point of a batch."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from event_token.errors import Retry
from shardstream.local.database_server import (
    NOT_DURABLE,
    LocalDatabase,
    MariadbServer,
    MysqlServer,
)
from tests.database_servers import DatabaseFixture, own_account
from tests.faults.disks import filled, small_disk
from tests.sinks.database.followed import Followed, Item
from tests.sinks.database.mysql_targets import MysqlTargets

# A data folder has 200 MB; tmpfs takes no memory for what is not written.
DISK_BYTES = 400 * 1024 * 1024
ROOM_BYTES = 16 * 1024 * 1024
# Room for nothing, for the definition of a table, for a staging table, for its rows. With 128 KB
# MariaDB ends itself, for which it takes ten seconds; what follows on that is F34.
ROOMS = {
    MysqlServer: (0, 64 * 1024, 128 * 1024, 256 * 1024, ROOM_BYTES),
    MariadbServer: (0, 4096, 64 * 1024, ROOM_BYTES),
}


def run_until_there_is_room(
    followed: Followed, disk: Path, rooms: Sequence[int], items: Sequence[Item]
) -> list[str]:
    """Run a batch with more room each time until it is applied; return the errors."""
    said: list[str] = []
    before = followed.number
    for room in rooms:
        try:
            with filled(disk, room):
                followed.database.drop_stages()
                followed.apply(items)
        except Retry as error:
            said.append(str(error))
            followed.number = before
        else:
            return said
    raise AssertionError(said)


def with_binlog_in(folder: Path) -> tuple[str, ...]:
    """Options that keep the binlog, and what a transaction adds to it, off the small disk.

    Without room for the first MySQL waits for as long as there is none, without room for the second
    it ends itself; see test_commit_errors.py.
    """
    folder.mkdir(mode=0o777)
    return f"--log-bin={folder}/binlog", "--binlog-cache-size=16M"


@pytest.mark.parametrize("kind", [MysqlServer, MariadbServer])
def test_each_step_of_a_batch_may_find_the_disk_full(
    kind: type[LocalDatabase], real_servers: None, tmp_path: Path
) -> None:
    """F42: the error says that the disk is full; once there is room, the batch is applied once."""
    many = [Item(i, i, 200 + i, note=str(i) * 10) for i in range(1, 500)]
    more = [
        Item(i, 500 + i, 1200 + i, note=None if i % 5 == 0 else "n", deleted=i % 5 == 0)
        for i in range(1, 500)
    ]
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        server = kind(
            disk / "server",
            server_id=9301,
            account=own_account(),
            extra_args=(*NOT_DURABLE, *with_binlog_in(tmp_path / "binlog")),
            die_with_parent=True,
        )
        try:
            server.start()
            followed = Followed(MysqlTargets(DatabaseFixture(server)))
            followed.database.prepare()

            said = [
                run_until_there_is_room(followed, disk, ROOMS[kind], items)
                for items in (many, more)
            ]

            followed.check()
        finally:
            server.kill()

    place = f"mysql://127.0.0.1/{followed.name}: "
    assert [len(errors) > 1 for errors in said] == [True, True]
    for error in (error for errors in said for error in errors):
        assert error.startswith(f"{place}its disk is full, make room: ")
