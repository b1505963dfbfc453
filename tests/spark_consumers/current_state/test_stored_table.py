"""A table of current rows against a dictionary."""

import random
from pathlib import Path

import pytest

from spark_consumers.current_state.upkeep import CHECKPOINT_COMMITS
from tests.spark_consumers.current_state.lake_rows import Lake, Rows, random_batch


@pytest.mark.parametrize(("batches", "deletion_vectors"), [(200, True), (60, False)])
def test_batches_leave_what_a_dictionary_holds(
    tmp_path: Path, batches: int, deletion_vectors: bool
) -> None:
    """A reader finds each key once, with its newest values, through compactions and checkpoints."""
    lake = Lake(str(tmp_path / "orders")).create(deletion_vectors=deletion_vectors)
    random_, model = random.Random(7), Rows()

    for number in range(batches):
        batch = random_batch(random_, number)
        lake.run(number, batch)
        batch.apply(model)
        if number % 20 == 19:
            assert lake.read() == model

    assert len(lake.driver.snapshot.files) < 60
    is_due = batches >= CHECKPOINT_COMMITS
    assert any(tmp_path.rglob("*.checkpoint.parquet")) == is_due
