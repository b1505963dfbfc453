"""How long and how deep a WHERE may be, and which decimals are tested as integers."""

import pytest

from producers.filters.binding import Range, split_ranges
from producers.filters.conditions import AllOf, AnyOf, ColumnRef, Condition, IsNull, RuleError
from producers.filters.where import SourceColumn, compile_where
from producers.filters.where_syntax import parse_where
from topics.records.table_shape import Column, ValueKind

ID = SourceColumn(Column("id", ValueKind.LONG, "bigint"))


def test_a_where_may_have_ten_thousand_characters() -> None:
    """One more is too many."""
    where = f"id = {'1':>9995}"

    assert compile_where(parse_where(where), [ID], None).predicate(1)
    with pytest.raises(RuleError, match="has 10001 characters, more than 10000"):
        parse_where(where + " ")


def test_a_tree_that_is_too_deep_to_compile_is_refused() -> None:
    """It is an error of the rule, not of Python."""
    tree: Condition = IsNull(ColumnRef("id"))
    for _ in range(110):
        tree = AnyOf((AllOf((tree, IsNull(ColumnRef("id")))), IsNull(ColumnRef("id"))))

    with pytest.raises(RuleError, match="nested too deeply"):
        compile_where(tree, [ID], None)


@pytest.mark.parametrize(("digits", "ranges"), [(18, [Range(0, 5, 5)]), (19, [])])
def test_decimals_of_64_bits_are_tested_as_integers(digits: int, ranges: list[Range]) -> None:
    """Up to 18 digits they have a fixed size; longer ones are left to the predicate."""
    price = SourceColumn(Column("n", ValueKind.DECIMAL, f"decimal({digits},0)", digits, 0))

    assert split_ranges(parse_where("n = 5"), [price])[0] == ranges
