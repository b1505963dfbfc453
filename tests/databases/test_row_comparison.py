"""What a comparison of rows counts and names, and how often it looks again."""

from collections.abc import Sequence

import pytest

from databases.row_comparison import (
    NAMED_MAX,
    ROUNDS_MAX,
    Difference,
    RowComparison,
    key_text,
)
from databases.sql import beyond

KEY = [("a", False), ("b", True)]


def test_all_rows_that_differ_are_counted_and_the_first_are_named() -> None:
    """A table that differs everywhere does not fill the memory."""
    found = RowComparison()
    found.missing("shop.items", "-80", key_text(["id"], [1]))
    found.changed("shop.items", "80-", key_text(["id", "name"], [2, b"\xff"]), ["price", "raw"])
    for number in range(NAMED_MAX):
        found.surplus("shop.items", "80-", str(number), ", hidden by another row")

    assert found.differing == NAMED_MAX + 2
    assert len(found.named) == NAMED_MAX
    assert found.named[:3] == (
        Difference("shop.items", "-80", "id=1", "it is missing in the target"),
        Difference(
            *("shop.items", "80-", "id=2, name=\ufffd", "it differs in price, raw"),
            columns=("price", "raw"),
        ),
        Difference("shop.items", "80-", "0", "it is in the target alone, hidden by another row"),
    )


def test_rows_that_keep_changing_are_looked_at_so_often_and_no_more() -> None:
    """A row that settles is asked for once more, one that never does is counted as changing."""
    found = RowComparison()
    rounds: list[tuple[Sequence[int], bool]] = []

    def compare(keys: Sequence[int], is_last: bool) -> list[int]:
        rounds.append((keys, is_last))
        return [key for key in keys if key == 3 or len(rounds) < key]

    found.look_again([1, 2, 3, 3], compare)

    assert rounds == [([1, 2, 3], False), ([2, 3], False), ([3], True)]
    assert (len(rounds), found.changing) == (ROUNDS_MAX, 1)


@pytest.mark.parametrize(
    ("place", "upto", "condition"),
    [
        ((), False, ""),
        (("1", "'x'"), False, "(`a` > 1) OR (`a` = 1 AND `b` < 'x')"),
        (("1", "'x'"), True, "(`a` < 1) OR (`a` = 1 AND `b` > 'x') OR (`a` = 1 AND `b` = 'x')"),
    ],
)
def test_a_range_of_keys_is_one_of_the_index(
    place: tuple[str, ...], upto: bool, condition: str
) -> None:
    """Rows behind a place in key order, or up to and with it, also of a descending column."""
    assert beyond(KEY, place, upto=upto) == condition
