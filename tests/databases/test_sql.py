"""Values as SQL literals."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from databases.sql import value_literal


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (-7, "-7"),
        (Decimal("1.50"), "1.50"),
        (0.1, "0.1"),
        ("a'\\", "_utf8mb4 x'61275c'"),
        (b"\x00\xff", "x'00ff'"),
        (datetime(2024, 2, 29, 1, 2, 3, 4), "'2024-02-29 01:02:03.000004'"),  # noqa: DTZ001
        (datetime(2024, 2, 29, tzinfo=UTC), "'2024-02-29 00:00:00.000000'"),
        (date(2024, 2, 29), "'2024-02-29'"),
        (-timedelta(hours=30, microseconds=5), "'-30:00:00.000005'"),
        (["a", "b"], "_utf8mb4 x'612c62'"),
    ],
)
def test_literals_of_values(value: object, literal: str) -> None:
    """No quoting rule, time zone or character set can change what a literal means."""
    assert value_literal(value) == literal


def test_other_types_have_no_literal() -> None:
    """What no column can hold is refused by its type."""
    with pytest.raises(ValueError, match="no column holds a object"):
        value_literal(object())
