"""What maintenance leaves of a target's frontiers, and what can still be read at them."""

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token.errors import UsageError
from event_token.position import ShardPosition, StreamPosition
from shardstream.commands.sinks.state import as_of
from sinks.lake.delta.commit import vacuum
from sinks.lake.delta.stored_table import open_table
from sinks.lake.state import frontiers as frontiers_module
from sinks.lake.state.batch_commit import rewrite
from sinks.lake.state.frontiers import KEEP_S_MAX, Frontiers, maintain_state, table_as_of
from sinks.lake.state.layout import FRONTIERS
from sinks.resume import PlannedBatch
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import Source, change
from topics.records.vevent import Row

YEAR_S = 365 * 24 * 3600


def followed(folder: Path, batches: int) -> Query:
    """A target each of whose batches rewrites the files of the one before."""
    query = Query(folder, Source())
    go_on(query, range(batches))
    return query


def go_on(query: Query, batches: range) -> None:
    """Run batches, of which each gives the row its own number, in its own cell."""
    for i in batches:
        before: Row | None = {"id": 1, "value": i - 1} if i else None
        event = change("-80", i + 1, 100 * (i + 1), before, {"id": 1, "value": i})
        query.run(query.source.rows([event]), frontier_us=100 * (i + 2))


def kept(folder: Path) -> list[dict[str, int]]:
    """The frontiers in order: number, frontier and when each was written."""
    rows = pa.table(DeltaTable(str(folder / FRONTIERS)).scan()).to_pylist()
    return sorted(rows, key=lambda row: row["number"])


def values(folder: Path, frontier_us: int) -> list[int]:
    """The values of the table as of a frontier."""
    rows = table_as_of(str(folder), "shop.orders", frontier_us).rows.to_pylist()
    return [row["value"] for row in rows]


def test_what_is_kept_can_be_read_after_a_vacuum(tmp_path: Path) -> None:
    """Maintenance as of any moment: each frontier that it leaves has all files of its tables."""
    followed(tmp_path / "state", 6)
    written = kept(tmp_path / "state")
    counts = []
    for i, row in enumerate(written):
        folder = tmp_path / str(i)
        shutil.copytree(tmp_path / "state", folder)
        since_us = row["written_us"]

        gone, _ = Frontiers(str(folder), {}).prune(since_us)
        for url in (folder / "shop" / "orders", folder / "_shardstream" / "shop" / "orders"):
            vacuum(str(url), {}, since_us / 1e6)

        left = kept(folder)
        assert [each["number"] for each in left] == [*range(gone + 1, 7)]
        for each in left:
            assert values(folder, each["frontier_us"]) == [each["number"] - 1]
        counts.append(len(left))

    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_a_query_goes_on_from_the_frontier_that_is_left(tmp_path: Path) -> None:
    """The newest stays however old it is, and the target keeps its position and rows."""
    query = followed(tmp_path, 3)

    removed = maintain_state(str(tmp_path), tombstones_s=YEAR_S, keep_s=0)
    again = maintain_state(str(tmp_path), tombstones_s=YEAR_S, keep_s=KEEP_S_MAX)
    go_on(query, range(3, 5))

    assert [(each.table, each.frontiers) for each in removed] == [
        (FRONTIERS, 2),
        ("shop.orders", 0),
    ]
    assert [each.frontiers for each in again] == [0, 0]
    assert [row["number"] for row in kept(tmp_path)] == [3, 4, 5]
    assert [values(tmp_path, at) for at in (400, 500, 600)] == [[2], [3], [4]]


def test_the_newest_frontier_can_be_read_after_a_rewrite(tmp_path: Path) -> None:
    """A table rewritten after its last batch, as for a dropped column, keeps that batch's files."""
    query = followed(tmp_path, 2)
    before = kept(tmp_path)[-1]["frontier_us"]
    url = str(tmp_path / "shop" / "orders")
    table = open_table(url, {})
    assert table is not None
    rewrite(url, {}, table.schema, {})

    maintain_state(str(tmp_path), tombstones_s=YEAR_S, keep_s=0)

    assert values(tmp_path, before) == [1]
    go_on(query, range(2, 3))
    maintain_state(str(tmp_path), tombstones_s=YEAR_S, keep_s=0)
    assert [values(tmp_path, row["frontier_us"]) for row in kept(tmp_path)] == [[2]]


def test_many_frontiers_leave_a_short_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch lists the log, so what is old goes; all frontiers can be found, also by time."""
    monkeypatch.setattr(frontiers_module, "ROWS_PER_CHECKPOINT", 5)
    found = Frontiers(str(tmp_path), {})
    add(found, range(1, 21))
    old_s = time.time() - 2 * 3600
    log = [*tmp_path.rglob("*.json")]
    for path in tmp_path.rglob("*"):
        os.utime(path, (old_s, old_s))

    add(found, range(21, 26))

    assert len([path for path in log if path.exists()]) < 10 < len(log)
    again = Frontiers(str(tmp_path), {})
    newest = again.newest()
    assert newest is not None
    assert (newest.number, newest.position) == (25, end(25))
    for number in (1, 17, 24):
        before = again.before(1000 * number + 500)
        assert before is not None
        assert before.number == number
    assert again.before(999) is None


def end(number: int) -> StreamPosition:
    """The position after a number of batches."""
    return StreamPosition(0, 1000 * number, {"-80": ShardPosition(10 * number, 0, None)})


def add(found: Frontiers, numbers: range) -> None:
    """Add frontiers, each one batch after the last."""
    for number in numbers:
        found.add(PlannedBatch("q", number - 1, end(number - 1), end(number)), {}, {})
        found.tidy()


def test_files_are_kept_for_a_week_at_most(tmp_path: Path) -> None:
    """After a week the log does not tell which versions had a file, so no longer time is taken."""
    with pytest.raises(UsageError, match=r"--keep 604801 s: at most 604800 s \(7d\)"):
        maintain_state(str(tmp_path), tombstones_s=0, keep_s=KEEP_S_MAX + 1)


def test_a_file_that_cannot_be_written_and_a_target_that_is_none_are_named(tmp_path: Path) -> None:
    """`state as-of` ends with one sentence."""
    followed(tmp_path / "state", 1)
    target, none = str(tmp_path / "state"), str(tmp_path / "none")

    for place in (tmp_path, tmp_path / "no" / "rows.parquet"):
        with pytest.raises(UsageError, match=f"--to {place}: .*: name a file in a folder"):
            as_of(target, "shop.orders", "latest", place)
    with pytest.raises(UsageError, match=f"{none} holds no current state: name the target"):
        as_of(none, "shop.orders", "latest", tmp_path / "rows.parquet")
