"""The disk of a target fills up at each point of a batch."""

from dataclasses import replace
from itertools import chain
from pathlib import Path

from event_token.errors import Retry
from tests.faults.disks import filled, small_disk
from tests.sinks.lake.state.batch_queries import Query, SourceRow, visible
from tests.sinks.rule.batches import ORDERS, Source, change
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Row

DISK_BYTES = 16 * 1024 * 1024
# A file system in memory gives a file whole pages.
PAGE_BYTES = 4096
# More than a batch of this test writes.
PAGES_MAX = 100
NOTED = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "text")))


def three_batches(source: Source) -> list[list[SourceRow]]:
    """Batches that create the tables, add a column and a tombstone, and change a row."""
    rows = [change("-80", i, 100 + i, None, {"id": i, "value": i}) for i in (1, 2)]
    added: Row = {"id": 3, "value": 3, "note": "n"}
    return [
        source.rows(rows),
        source.rows(
            [
                change("-80", 3, 110, None, added, shape=NOTED),
                change("-80", 4, 111, {"id": 1, "value": 1}, None),
            ]
        ),
        source.rows([change("-80", 5, 120, added, {**added, "value": 4}, shape=NOTED)]),
    ]


def run_with_more_and_more_room(query: Query, disk: Path, batch: list[SourceRow]) -> list[str]:
    """Run a batch with one page more of room each time until it is written; return the errors."""
    said: list[str] = []
    for pages in range(PAGES_MAX):
        try:
            with filled(disk, pages * PAGE_BYTES):
                query.run(batch)
        except Retry as error:
            said.append(str(error))
        else:
            return said
    raise AssertionError(said)


def test_each_file_of_a_batch_may_find_the_disk_full(tmp_path: Path) -> None:
    """F42: the error names file and reason; once there is room, each row is there once."""
    source = Source()
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        query = Query(disk / "state", source)

        said = [run_with_more_and_more_room(query, disk, batch) for batch in three_batches(source)]

        assert visible(disk / "state") == {"[2]": 2, "[3]": 4}
        assert [len(errors) > 2 for errors in said] == [True, True, True]
        for error in chain.from_iterable(said):
            assert error.startswith(f"{disk}/state/")
            assert "cannot be written" in error
            assert "No space left on device" in error
