"""Vacuum and checkpoints of tables with deletion vectors."""

import os
import time
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from sinks.lake.delta.commit import vacuum
from sinks.lake.delta.log import (
    VECTORS_FOLDER,
    DataFile,
    VectorPlace,
    commit_path,
    removals,
    serialized,
    to_z85,
)
from sinks.lake.delta.storage import Storage
from tests.sinks.lake.delta.lake_rows import Batch, Lake, Rows, row

DAY_S = 24 * 3600


def aged(folder: Path, days: int) -> None:
    """Make all files of a table older."""
    when = time.time() - days * DAY_S
    for path in folder.rglob("*"):
        os.utime(path, (when, when))


def batches(lake: Lake, number: int) -> Rows:
    """Run some batches, which delete rows of each other."""
    model = Rows()
    for i in range(number):
        batch = Batch([row(n, i) for n in range(i + 1, 100, 4)], [f"[{i}]"])
        lake.run(i, batch)
        batch.apply(model)
    return model


def test_a_vacuum_by_delta_rs_leaves_deletion_vectors(tmp_path: Path) -> None:
    """`vacuum` of delta-rs, which takes vectors for unused files, brings no row back."""
    lake = Lake(str(tmp_path / "orders")).create()
    model = batches(lake, 6)
    aged(tmp_path / "orders", 30)

    table = DeltaTable(lake.url)
    removed = table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    assert not [path for path in removed if "deletion_vector" in path]
    assert lake.read() == model


def test_a_vacuum_keeps_what_the_last_days_may_need(tmp_path: Path) -> None:
    """Orphans and files that left the table long ago are deleted; recent versions stay readable."""
    folder = tmp_path / "orders"
    lake = Lake(str(folder)).create()
    model = batches(lake, 12)
    lake.tables[0].stage(None, pa.Table.from_pylist([row(1, 99)], lake.driver.schema))
    files = len([*folder.glob("*.parquet")])
    vectors = len([*folder.glob("_vectors/*")])

    assert vacuum(lake.url, {}, time.time() - 7 * DAY_S) == []
    aged(folder, 8)
    orphans = vacuum(lake.url, {}, time.time() - 7 * DAY_S)
    versions = [len(by_version(lake.url, version)) for version in range(1, 13)]
    unused = vacuum(lake.url, {}, time.time())

    assert [path[:3] for path in orphans] == ["b00"]
    assert versions[-1] == len(model)
    assert lake.read() == model
    assert len(unused) > 10
    current = lake.driver.snapshot.files.values()
    assert len([*folder.glob("*.parquet")]) == len(current) < files
    assert len([*folder.glob("_vectors/*")]) == len({f.vector.path for f in current if f.vector})
    assert vectors > 1


def test_a_vacuum_leaves_what_a_batch_has_staged(tmp_path: Path) -> None:
    """`--keep 0` beside a running query: files that are not committed yet stay for a day."""
    lake = Lake(str(tmp_path / "orders")).create()
    model = batches(lake, 12)
    batch = Batch([row(n, 12) for n in range(5)])
    staged = lake.stage(batch)

    removed = vacuum(lake.url, {}, time.time())
    lake.commit(12, staged)

    batch.apply(model)
    assert removed
    assert lake.read() == model


def test_a_shared_file_of_vectors_was_removed_with_its_last_vector(tmp_path: Path) -> None:
    """Checkpoints name removed files in any order; a file of vectors is there once per vector."""
    place = VectorPlace("u", VECTORS_FOLDER + to_z85(bytes(16)), 1, 34, 1)
    storage = Storage(str(tmp_path), {})
    for version, (path, when_ms) in enumerate((("a", 100), ("b", 300), ("c", 200))):
        removed = DataFile(path, 1, 1, 0, place).removal(when_ms, data_change=True)
        storage.write(commit_path(version), serialized([removed]))

    assert removals(storage) == {"a": 100, "b": 300, "c": 200, place.path: 300}


def by_version(url: str, version: int) -> list[object]:
    return list(pa.table(DeltaTable(url, version=version).scan()).to_pylist())
