"""Offsets are predicted only where the gap before was one marker."""

import pytest

from producers.errors import LogDisagrees
from producers.shard_log.row_offsets import RowOffsets


def taken(offsets: RowOffsets, first: int, count: int) -> int:
    """Let `count` rows be stored from an offset on; return what was predicted for the first."""
    offsets.begin()
    predicted = offsets.predicted
    offsets.add(first)
    offsets.add(first + count - 1)
    assert offsets.take(count) == first
    return predicted


def test_a_prediction_needs_a_regular_gap_before_it() -> None:
    """The first two transactions and each one after an irregular gap have none."""
    offsets = RowOffsets("log")
    places = [(0, 3), (4, 1), (6, 2), (20, 1), (22, 5), (28, 1)]

    assert [taken(offsets, *place) for place in places] == [-1, -1, 6, 9, -1, 28]


def test_a_transaction_without_rows_changes_nothing() -> None:
    """It leaves no marker in the log."""
    offsets = RowOffsets("log")
    taken(offsets, 0, 1)
    taken(offsets, 2, 1)
    offsets.begin()

    assert taken(offsets, 4, 1) == 4


def test_rows_that_are_not_contiguous_are_refused() -> None:
    """Somebody else's record lies between, or a report is missing."""
    offsets = RowOffsets("log")
    offsets.begin()
    with pytest.raises(LogDisagrees, match="1 records were written"):
        offsets.take(1)
    offsets.add(7)
    offsets.add(9)
    with pytest.raises(LogDisagrees, match="the first lies at offset 7 and the last at 9"):
        offsets.take(2)
