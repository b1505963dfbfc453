"""Commits that meet those of other writers, and of drivers that died."""

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType

from event_token.errors import Halt, Retry
from sinks.errors import LakeConflict, StaleBatch
from sinks.lake.delta.commit import commit
from sinks.lake.delta.log import query_mark
from sinks.lake.delta.storage import Storage
from sinks.lake.delta.stored_table import StagedFiles, add_columns, write_file
from tests.faults.disks import filled, small_disk
from tests.repository import ROOT
from tests.sinks.lake.delta.lake_rows import (
    SCHEMA,
    Batch,
    Lake,
    Rows,
    random_batch,
    row,
)

# A batch of one task writes in this order: data files of two buckets, the vectors, the commit.
WRITES = 4


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A table of two buckets with one batch."""
    made = Lake(str(tmp_path / "orders"), tasks=1).create(buckets=2)
    made.run(0, first_batch())
    return made


def first_batch() -> Batch:
    return Batch([row(number, 0) for number in range(200)])


def second_batch() -> Batch:
    return Batch([row(number, 1) for number in range(170, 210)], ["[1]", "[2]", "[777]"])


def model_of(*batches: Batch) -> Rows:
    model = Rows()
    for batch in batches:
        batch.apply(model)
    return model


def test_a_batch_is_never_committed_twice(lake: Lake) -> None:
    """A batch that is in the table is refused by name, whoever planned it."""
    staged = lake.stage(second_batch())
    lake.commit(1, staged)

    with pytest.raises(LakeConflict, match="batch 1 of query q is in the table already"):
        lake.commit(1, staged)
    with pytest.raises(LakeConflict, match="batch 1 of query q is in the table already"):
        lake.run(1, second_batch())

    assert lake.read() == model_of(first_batch(), second_batch())


def test_of_two_drivers_the_second_halts(lake: Lake) -> None:
    """A driver that was taken for dead cannot write over the work of the one that follows it."""
    zombie = Lake(lake.url, tasks=1, query="other")
    staged = zombie.stage(Batch([row(3, 5)]))
    lake.run(1, second_batch())

    with pytest.raises(LakeConflict, match="query q committed version 2 while a batch was planned"):
        zombie.commit(9, staged)

    assert lake.read() == model_of(first_batch(), second_batch())


def test_an_optimize_in_between_makes_the_batch_run_again(lake: Lake) -> None:
    """Rows that another program moved to another file are deleted there by the next run."""
    staged = lake.stage(second_batch())
    DeltaTable(lake.url).optimize.compact()

    with pytest.raises(StaleBatch, match=r"another program rewrote b00\S+ meanwhile"):
        lake.commit(1, staged)
    lake.run(1, second_batch())

    assert lake.read() == model_of(first_batch(), second_batch())


def test_a_new_column_in_between_is_built_upon(lake: Lake) -> None:
    """Somebody's ALTER TABLE neither stops a batch nor is lost by it."""
    staged = lake.stage(second_batch())
    DeltaTable(lake.url).alter.add_columns([Field("more", PrimitiveType("string"))])

    lake.commit(1, staged)
    add_columns(lake.url, {}, SCHEMA)

    expected = model_of(first_batch(), second_batch())
    assert lake.read() == {key: found | {"more": None} for key, found in expected.items()}


def test_a_rewrite_of_changed_files_is_planned_again(lake: Lake) -> None:
    """A file is never replaced by a copy that lacks what another program did to it."""
    batches = [Batch([row(8 * number + i, number) for i in range(8)]) for number in range(1, 11)]
    for number, batch in enumerate(batches[:-1], 1):
        lake.run(number, batch)
    last = batches[-1]
    staged = lake.stage(last)
    assert staged[0].rewritten
    DeltaTable(lake.url).optimize.compact()

    with pytest.raises(StaleBatch, match="another program changed b00"):
        lake.commit(10, staged)
    lake.run(10, last)

    assert lake.read() == model_of(first_batch(), *batches)


# One process for all: it imports once, and forks before anything has threads.
KILLED = """
import os, signal, sys
from tests.sinks.lake.delta import test_commit
from tests.sinks.lake.delta.lake_rows import Lake
from tests.sinks.lake.state.killed_lake import in_a_process
from sinks.lake.delta.storage import Storage

def run(url, left, when):
    def stopping(method):
        def write(*args):
            nonlocal left
            left -= 1
            if when == "before" and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            done = method(*args)
            if when == "after" and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return done
        return write

    Storage.write, Storage.create = stopping(Storage.write), stopping(Storage.create)
    Lake(url, tasks=1).run(1, test_commit.second_batch())

folder = sys.argv[1]
for write, when in test_commit.KILLS:
    url = f"{folder}/{write}-{when}"
    assert not in_a_process(lambda: run(url, write, when)), f"not killed: {url}"
"""
# At which file of the batch, and whether it is written.
KILLS = [(write, when) for write in range(1, WRITES + 1) for when in ("before", "after")]


@pytest.fixture(scope="module")
def killed_lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], Lake]:
    """A table of one batch for each of `KILLS`, whose second batch was killed there."""
    folder = tmp_path_factory.mktemp("killed")
    lakes = {
        (write, when): Lake(f"{folder}/{write}-{when}", tasks=1).create(buckets=2)
        for write, when in KILLS
    }
    for made in lakes.values():
        made.run(0, first_batch())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return lakes


@pytest.mark.parametrize(("write", "when"), KILLS)
def test_a_killed_driver_leaves_a_whole_batch_or_none(
    killed_lakes: dict[tuple[int, str], Lake], write: int, when: str
) -> None:
    """Killed at each file of a batch, its replay neither loses a row nor doubles one."""
    lake = killed_lakes[write, when]
    is_committed = (write, when) == (WRITES, "after")
    batches = [first_batch(), second_batch()]
    assert lake.read() == model_of(*batches[: 1 + is_committed])
    if is_committed:
        with pytest.raises(LakeConflict, match="in the table already"):
            lake.run(1, second_batch())
    else:
        lake.run(1, second_batch())
    assert lake.read() == model_of(*batches)


def test_two_drivers_at_once_leave_the_work_of_one(tmp_path: Path) -> None:
    """Of two drivers that commit each version at the same time, one goes on and one halts."""
    one = Lake(str(tmp_path / "orders"), tasks=1).create()
    other = Lake(one.url, tasks=1)
    random_, model = random.Random(3), Rows()

    for number in range(20):
        batches = [random_batch(random_, number), random_batch(random_, number)]
        staged = [lake.stage(batch) for lake, batch in zip((one, other), batches, strict=True)]
        order = [0, 1] if random_.random() < 0.5 else [1, 0]
        (one, other)[order[0]].commit(number, staged[order[0]])
        with pytest.raises(LakeConflict):
            (one, other)[order[1]].commit(number, staged[order[1]])
        batches[order[0]].apply(model)

    assert one.read() == model


def test_a_table_that_was_replaced_is_read_again(lake: Lake, tmp_path: Path) -> None:
    """Who removes a table and begins a new one meets nothing of the former one."""
    lake.run(1, second_batch())
    stale = lake.open()
    shutil.rmtree(lake.url)
    again = Lake(lake.url, tasks=1).create(buckets=2)
    for number in range(4):
        again.run(number, Batch([row(number, number)]))

    stale.refresh()

    assert stale.snapshot == again.driver.snapshot
    assert stale.read(stale.everything(range(2))).num_rows == 4


def test_a_batch_does_not_list_the_log(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch, also one behind others, asks for new commits by name: a log may have a million."""
    listed = []
    names = Storage.names

    def noted(self: Storage, *args: str) -> Iterator[tuple[str, datetime]]:
        listed.append(args)
        return names(self, *args)

    monkeypatch.setattr(Storage, "names", noted)
    stale = lake.open()
    lake.run(1, second_batch())
    before = len(listed)

    for number in range(2, 8):
        lake.run(number, Batch([row(number, number)]))
    stale.refresh()
    assert len(listed) == before
    for number in range(8, 20):
        lake.run(number, Batch([row(number, number)]))
    stale.refresh()

    assert len(listed) == before + 1
    assert stale.snapshot == lake.driver.snapshot


def test_a_full_disk_is_named_and_waited_for(tmp_path: Path) -> None:
    """A batch that finds no room says so, and is applied once there is some."""
    with small_disk(tmp_path / "disk", 2 * 1024 * 1024) as disk:
        lake = Lake(str(disk / "orders"), tasks=1).create(buckets=2)
        lake.run(0, first_batch())

        with filled(disk, 0), pytest.raises(Retry, match=r"b00.*\.parquet cannot be written"):
            lake.run(1, second_batch())
        staged = lake.stage(second_batch())
        with filled(disk, 0), pytest.raises(Retry, match=r"_vectors/.* cannot be written"):
            lake.commit(1, staged)
        lake.commit(1, staged)

        assert lake.read() == model_of(first_batch(), second_batch())


def test_rows_and_files_of_other_programs_are_named(lake: Lake) -> None:
    """A row without a key stops the next batch, as does a file that is gone."""
    rows = pa.Table.from_pylist([{"id": 5}], SCHEMA)
    table = lake.open()
    before = table.find(pa.array(["[5]"]))
    file = write_file(table.storage, 0, 1, rows)
    commit(table, [StagedFiles(table.snapshot.version, (file,), {}, {})])

    with pytest.raises(Halt, match="1 rows have no _key: another program wrote them"):
        lake.run(1, second_batch())
    Path(lake.url, before.by_path().popitem()[0]).unlink()
    with pytest.raises(Halt, match=r"b00.*\.parquet is missing, which belongs to the table"):
        table.read(before)


def test_a_wider_batch_adds_its_columns(lake: Lake) -> None:
    """Tasks write a column that the table gets just before the commit; older rows have nulls."""
    table = lake.open()
    table.schema = SCHEMA.append(pa.field("more", pa.int32()))
    rows = [row(number, 1) | {"more": number} for number in (3, 900)]
    found = table.find(pa.array(["[3]", "[900]"]))
    staged = table.stage(found, pa.Table.from_pylist(rows, table.schema))

    add_columns(lake.url, {}, table.schema)
    commit(table, [staged], {query_mark("q"): 1})

    expected = {key: each | {"more": None} for key, each in model_of(first_batch()).items()}
    assert lake.read() == expected | {str(each["_key"]): each for each in rows}
    table.refresh()
    known = table.read(table.find(pa.array(["[3]", "[4]"])), ["id", "more"])
    assert by_id(known.to_pylist()) == {3: 3, 4: None}


def by_id(rows: list[dict[str, int]]) -> dict[int, int | None]:
    return {each["id"]: each["more"] for each in rows}


def test_a_table_without_deletion_vectors_is_refused(tmp_path: Path) -> None:
    """Vectors are never written into a table whose readers need not know them."""
    url = str(tmp_path / "orders")
    DeltaTable.create(url, SCHEMA)

    with pytest.raises(Halt, match="lacks Delta's feature deletionVectors"):
        Lake(url, tasks=1).create()
