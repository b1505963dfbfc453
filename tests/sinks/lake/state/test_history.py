"""Histories: every version of a row, and from when to when it was visible."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from event_token.errors import UsageError
from sinks.lake.delta.log import DataFile
from sinks.lake.delta.stored_table import FILES_OF_A_SIZE_MAX, open_table
from sinks.lake.state.history import FULL_BYTES, begin_histories, due_closed
from sinks.lake.state.task import TaskTables
from tests.sinks.lake.state.batch_queries import PARTITIONS, Died, Query
from tests.sinks.lake.state.versions import (
    current,
    place,
    values,
    versions,
)
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, ValueKind
from topics.records.vevent import Row, VEvent

HERE, THERE = b"\x10", b"\x90"


def of(number: int, **more: str) -> Row:
    """An order with id 1."""
    return {"id": 1, "value": number, **more}


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """A query that keeps the history of the orders."""
    return Query(tmp_path, Source(), history=True)


def intervals(folder: Path) -> list[tuple[int, int, int | None, str]]:
    """Value, beginning, end and op of each version."""
    names = ("value", "_from_us", "_to_us", "_op")
    return [tuple(row[name] for name in names) for row in versions(folder)]


def run(query: Query, *events: VEvent, frontier_us: int = 1) -> None:
    """Run a batch."""
    query.run(query.source.rows(events), frontier_us=frontier_us)


def test_versions_inside_a_batch_are_kept(query: Query, tmp_path: Path) -> None:
    """Each change begins a version, also two of one transaction, and a DELETE ends the last."""
    run(
        query,
        change("-80", 1, 100, None, of(1)),
        change("-80", 2, 110, of(1), of(2)),
        change("-80", 3, 110, of(2), of(3)),
    )
    run(query, change("-80", 4, 120, of(3), None), change("-80", 5, 130, None, of(4)))

    assert intervals(tmp_path) == [
        (1, 100, 110, "INSERT"),
        (2, 110, 110, "UPDATE"),
        (3, 110, 120, "UPDATE"),
        (4, 130, None, "INSERT"),
    ]
    token = change("-80", 5, 130, None, of(4)).token_text.token
    assert versions(tmp_path)[-1]["_from_token"] == token.to_string()


def test_a_row_that_does_not_change_keeps_its_version(query: Query, tmp_path: Path) -> None:
    """A copy that reads it again, and a move to another shard, begin none."""
    run(query, change("-80", 1, 100, None, of(1), ids=(None, HERE)))
    run(query, change("-80", 2, 110, None, of(1), ids=(None, HERE), copied=True))
    run(
        query,
        change("80-", 1, 120, None, of(1), ids=(None, THERE)),
        change("-80", 3, 125, of(1), None, ids=(HERE, None)),
    )
    run(query, change("80-", 2, 130, of(1), of(2), ids=(THERE, THERE)))

    assert intervals(tmp_path) == [(1, 100, 130, "INSERT"), (2, 130, None, "UPDATE")]


def test_a_hidden_row_comes_back_when_the_newer_one_is_removed(
    query: Query, tmp_path: Path
) -> None:
    """It begins a version at the time of the DELETE or TRUNCATE of the other one."""
    run(
        query,
        change("-80", 1, 100, None, of(1), ids=(None, HERE)),
        change("80-", 1, 110, None, of(2), ids=(None, THERE)),
    )
    run(query, change("80-", 2, 120, of(2), None, ids=(THERE, None)))
    run(query, change("80-", 3, 130, None, of(3), ids=(None, THERE)))
    run(query, statement("80-", 4, 140, "TRUNCATE orders"))

    assert intervals(tmp_path) == [
        (1, 100, 110, "INSERT"),
        (2, 110, 120, "INSERT"),
        (1, 120, 130, "DELETE"),
        (3, 130, 140, "INSERT"),
        (1, 140, None, "DDL"),
    ]


def test_a_late_row_takes_effect_where_the_history_ended(query: Query, tmp_path: Path) -> None:
    """Versions that have ended stay as they are, so that those of a key do not overlap."""
    run(query, change("-80", 1, 100, None, of(1), ids=(None, HERE)))
    deleted = change("-80", 2, 200, of(1), None, ids=(HERE, None))
    run(query, deleted, frontier_us=300)
    late = change("80-", 1, 150, None, of(2), ids=(None, THERE))
    query.run(query.source.rows([late], late=True), frontier_us=400)

    assert intervals(tmp_path) == [(1, 100, 200, "INSERT"), (2, 300, None, "INSERT")]


def test_a_batch_that_is_run_again_gives_each_version_once(query: Query, tmp_path: Path) -> None:
    """The driver dies after the history's commit, and another query goes on in other batches."""
    run(query, change("-80", 1, 100, None, of(1), ids=(None, HERE)), frontier_us=105)
    another: list[Row] = [{"id": 2, "value": 5}, {"id": 2, "value": 6}]
    rows = query.source.rows(
        [
            change("-80", 2, 110, of(1), of(2), ids=(HERE, HERE)),
            change("80-", 1, 120, None, of(3), ids=(None, THERE)),
            change("80-", 2, 130, of(3), of(4), ids=(THERE, THERE)),
            change("-80", 3, 140, of(2), None, ids=(HERE, None)),
            change("-80", 4, 145, None, another[0], ids=(None, HERE)),
            change("-80", 5, 150, *another, ids=(HERE, HERE)),
        ]
    )
    with pytest.raises(Died):
        query.run(rows, commits=1, frontier_us=200)
    query.lose_checkpoint()
    for begin, end, frontier_us in ((0, 3, 140), (3, 6, 200)):
        query.run(rows[begin:end], frontier_us=frontier_us)

    assert intervals(tmp_path) == [
        (1, 100, 110, "INSERT"),
        (2, 110, 120, "UPDATE"),
        (3, 120, 130, "INSERT"),
        (4, 130, None, "UPDATE"),
        (5, 145, 150, "INSERT"),
        (6, 150, None, "UPDATE"),
    ]


def test_only_tracked_columns_begin_a_version(tmp_path: Path) -> None:
    """Other changes are written into the open version; an unknown column is refused."""
    shape = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "text")))
    query = Query(tmp_path, Source(), history=True)

    def track(column: str) -> None:
        query.choose(history={"shop.orders": [column]})

    def changed(seq: int, before: Row | None, after: Row) -> VEvent:
        return change("-80", seq, 100 + seq, before, after, shape=shape)

    track("values")
    with pytest.raises(UsageError, match=r"--track: shop\.orders has no column 'values', but id"):
        run(query, changed(1, None, of(1, note="a")))
    track("Value")
    run(query, changed(1, None, of(1, note="a")), changed(2, of(1, note="a"), of(1, note="b")))
    run(query, changed(3, of(1, note="b"), of(1, note="c")))
    run(
        query,
        changed(4, of(1, note="c"), of(1, note="d")),
        changed(5, of(1, note="d"), of(2, note="e")),
    )

    assert intervals(tmp_path) == [(1, 101, 105, "INSERT"), (2, 105, None, "UPDATE")]
    assert [row["note"] for row in versions(tmp_path)] == ["d", "e"]


def test_partial_images_give_whole_versions(query: Query, tmp_path: Path) -> None:
    """binlog_row_image=MINIMAL: columns that a change lacks are those of the row before it."""
    shape = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "text")))
    run(query, change("-80", 1, 100, None, of(1, note="a"), shape=shape))
    run(
        query,
        change("-80", 2, 110, {"id": 1}, {"value": 2}, shape=shape),
        change("-80", 3, 120, {"id": 1}, {"note": "b"}, shape=shape),
    )

    assert intervals(tmp_path) == [
        (1, 100, 110, "INSERT"),
        (2, 110, 120, "UPDATE"),
        (2, 120, None, "UPDATE"),
    ]
    assert [row["note"] for row in versions(tmp_path)] == ["a", "a", "b"]


def test_a_history_follows_alters(tmp_path: Path) -> None:
    """A wider type rewrites ended versions too; a new column is NULL in them."""
    narrow = replace(ORDERS, columns=(ORDERS.columns[0], Column("value", ValueKind.INT, "int")))
    wide = replace(ORDERS, columns=(*ORDERS.columns, Column("note", ValueKind.STRING, "text")))
    query = Query(tmp_path, Source(), history=True)
    run(query, change("-80", 1, 100, None, of(1), shape=narrow))
    run(query, change("-80", 2, 110, of(1), of(2), shape=narrow))

    altered = change("-80", 3, 120, of(2, note="a"), of(2**40, note="a"), shape=wide)
    query.run_until_done(query.source.rows([altered]))

    assert [(row["value"], row["note"]) for row in versions(tmp_path)] == [
        (1, None),
        (2, None),
        (2**40, "a"),
    ]


def test_a_column_named_as_one_of_a_history_is_refused(query: Query) -> None:
    """The values of both could not be told apart."""
    shape = replace(ORDERS, columns=(*ORDERS.columns, Column("_op", ValueKind.STRING, "text")))
    with pytest.raises(ShapeConflict, match="'_op', which is the name of a column of its history"):
        run(query, change("-80", 1, 100, None, of(1, _op="a"), shape=shape))


def test_a_history_begins_with_the_rows_that_are_there(tmp_path: Path) -> None:
    """Each is visible since its last change. From then on no run may leave the history out.

    A column to track that the table does not have is named before the first batch.
    """
    query = Query(tmp_path, Source())
    run(query, *(change("-80", i, 100 + i, None, {"id": i, "value": i}) for i in range(1, 9)))
    query.choose(history={"shop.orders": ["values"]})
    with pytest.raises(UsageError, match=r"--track: shop\.orders has no column 'values', but id"):
        begin_histories(query.target)
    query.choose(history={"shop.orders": ()})
    for _ in range(2):  # The second start finds it begun.
        begin_histories(query.target)
    query.tasks = [TaskTables(query.target) for _ in range(PARTITIONS)]
    run(query, change("-80", 9, 120, {"id": 1, "value": 1}, {"id": 1, "value": 9}))

    found = versions(tmp_path)
    assert values(found, 119) == {f"[{i}]": i for i in range(1, 9)}
    assert current(found) == {f"[{i}]": i for i in range(2, 9)} | {"[1]": 9}
    query.choose(history={})
    with pytest.raises(
        UsageError, match=r"has the history of shop\.orders, .*--history shop.orders"
    ):
        run(query, change("-80", 10, 130, of(9), of(10)))


def test_what_a_batch_touches_does_not_grow_with_the_history(query: Query, tmp_path: Path) -> None:
    """Ended versions are never marked or looked for, and their small files are joined."""
    batches = 20
    for number in range(batches):
        before = of(number - 1) if number else None
        run(query, change("-80", number + 1, 100 + number, before, of(number)))
        table = open_table(place(tmp_path), {})
        assert table is not None
        assert not any(file.vector for file in table.snapshot.closed.values())
        assert len(table.snapshot.closed) < FILES_OF_A_SIZE_MAX + batches // FILES_OF_A_SIZE_MAX
        found = table.find(pa.array(["[1]"]))
        assert [path for path in found.paths if path in table.snapshot.closed] == []
        assert len(found.change) == 1

    assert [row["value"] for row in versions(tmp_path)] == [*range(batches)]


def test_a_closed_row_is_copied_a_few_times_and_full_files_never() -> None:
    """Of 5,000 files of 100 kB each byte is written less than four times, and few files remain."""
    files: list[DataFile] = []
    written = 0
    for number in range(5_000):
        due = due_closed(files, (0, 1))
        assert all(file.size < FULL_BYTES for file in due)
        size = 100_000 + sum(file.size for file in due)
        written += size
        files = [file for file in files if file not in due]
        files.append(DataFile(f"c000of001-{number}.parquet", size, 1_000, 0))

    assert written < 4 * 5_000 * 100_000
    assert len([file for file in files if file.size < FULL_BYTES]) <= 3 * FILES_OF_A_SIZE_MAX
    assert due_closed(files, (0, 2)) == due_closed(files, (1, 2)) == []
