"""A table of current rows against a dictionary."""

import random
from pathlib import Path

import pytest

from sinks.lake.delta import commit
from tests.sinks.lake.delta.lake_rows import Lake, Rows, random_batch


def test_batches_leave_what_a_dictionary_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader finds each key once, with its newest values, through compactions and checkpoints."""
    monkeypatch.setattr(commit, "CHECKPOINT_COMMITS", 15)
    lake = Lake(str(tmp_path / "orders")).create()
    random_, model = random.Random(7), Rows()

    for number in range(60):
        batch = random_batch(random_, number)
        lake.run(number, batch)
        batch.apply(model)
        if number % 20 == 19:
            assert lake.read() == model

    assert len(lake.driver.snapshot.files) < 60
    assert any(tmp_path.rglob("*.checkpoint.parquet"))
