"""Rows are found by their keys, whatever the hashes of keys and the memory for them."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sinks.lake.delta import stored_table
from sinks.lake.delta.commit import double_buckets
from sinks.lake.delta.stored_table import IndexMemory
from tests.sinks.lake.delta.lake_rows import Batch, Lake, Rows, random_batch, row


def follow(lake: Lake, batches: int, *, keys: int = 100) -> None:
    """Compare a table with a dictionary after some batches."""
    random_, model = random.Random(5), Rows()
    first = max(lake.driver.snapshot.marks.values(), default=-1) + 1
    for number in range(first, first + batches):
        batch = random_batch(random_, number, keys)
        lake.run(number, batch)
        batch.apply(model)
    assert lake.read() == model


def test_keys_of_equal_hashes_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change never touches the row of another key that has the same hash."""
    monkeypatch.setattr(stored_table, "xxh64_intdigest", lambda key: len(key) % 2)

    follow(Lake(str(tmp_path / "orders")).create(), 30)


def test_an_index_that_does_not_fit_is_read_from_the_files(tmp_path: Path) -> None:
    """A bound on memory costs time, never rows; and what left the table leaves the memory.

    Tables of a process share one bound.
    """
    follow(Lake(str(tmp_path / "none"), memory=IndexMemory(0)).create(), 20)
    memory = IndexMemory(30_000)
    lakes = [Lake(str(tmp_path / name), memory=memory).create() for name in ("some", "other")]
    for lake in lakes:
        follow(lake, 20)

    tables = [table for lake in lakes for table in [*lake.tables, lake.driver]]
    kept = [table._keys._files for table in tables]
    assert 0 < sum(keys.memory_bytes for of in kept for keys in of.values()) <= 30_000
    assert memory.bytes == sum(keys.memory_bytes for of in kept for keys in of.values())
    for table, of in zip(tables, kept, strict=True):
        table.refresh()
        assert of.keys() <= table.snapshot.files.keys()


def test_all_rows_of_a_key_are_found(tmp_path: Path) -> None:
    """A key may have several rows, in one file or in many, each with what is known of it."""
    lake = Lake(str(tmp_path / "orders"), tasks=1).create()
    table = lake.open()
    for number in range(3):
        rows = [row(i, 2 * number + twice) for i in range(100) for twice in range(2)]
        staged = table.stage(None, pa.Table.from_pylist(rows, table.schema), compact=False)
        lake.commit(number, [staged])
        table.refresh()
    asked = ["[7]", "[500]", "[10]"]

    found = table.find(pa.array(asked))
    gone = found.where(np.asarray(table.read(found)["_seq"]) % 2 == 0)
    lake.commit(3, [table.stage(gone, table.schema.empty_table(), compact=False)])
    table.refresh()
    left = table.find(pa.array(asked))

    read: list[dict[str, int]] = table.read(found).to_pylist()
    assert [each["_key"] for each in read] == [asked[i] for i in found.change]
    known = found.stored.to_pylist()
    assert known == [{name: each[name] for name in stored_table.INDEXED} for each in read]
    assert sorted(each["_seq"] for each in read if each["id"] == 7) == [*range(6)]
    assert len(found.row) == 12
    seqs = table.read(left, ["_seq", "id"]).to_pylist()
    assert sorted((each["id"], each["_seq"]) for each in seqs) == [
        (number, seq) for number in (7, 10) for seq in (1, 3, 5)
    ]


def test_buckets_double_under_way(tmp_path: Path) -> None:
    """A table that grows gets more buckets; files of the former ones are divided bit by bit."""
    lake = Lake(str(tmp_path / "orders"), tasks=2).create(buckets=2)
    random_, model = random.Random(5), Rows()
    for number in range(60):
        if number in {10, 20}:
            double_buckets(lake.url, {})
        batch = random_batch(random_, number)
        lake.run(number, batch)
        batch.apply(model)

    assert lake.read() == model
    table = lake.open()
    assert {file.bucket[1] for file in table.snapshot.files.values()} == {8}
    buckets = [table.read(table.everything([bucket])).num_rows for bucket in range(8)]
    assert (sum(buckets), min(buckets) > 0) == (len(model), True)


def test_all_rows_of_some_buckets_are_found(tmp_path: Path) -> None:
    """A TRUNCATE finds the rows of its task's buckets, also in files that buckets share."""
    lake = Lake(str(tmp_path / "orders"), tasks=1).create(buckets=2)
    lake.run(0, Batch([row(i, 0) for i in range(200)]))
    lake.run(1, Batch([], ["[3]", "[4]"]))
    double_buckets(lake.url, {})
    table = lake.open()

    parts = [table.read(table.everything([bucket, bucket + 2])) for bucket in range(2)]
    quarters = [table.read(table.everything([bucket])) for bucket in range(4)]

    for tables in (parts, quarters):
        ids = sorted(number for part in tables for number in part["id"].to_pylist())
        assert ids == [number for number in range(200) if number not in {3, 4}]
