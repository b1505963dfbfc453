"""Names of tables that a subscriber is asked for, as far as servers allow them."""

import pytest

from event_token import UsageError
from topics.stream.subscriber import checked_tables


@pytest.mark.parametrize(
    ("name", "database", "table"),
    [
        ("shop.orders", "shop", "orders"),
        ("shop.a.b", "shop", "a.b"),
        ("shop..b", "shop", ".b"),
        ("two\nlines.in\nboth", "two\nlines", "in\nboth"),
        ("`a.b`.`c.d`", "a.b", "c.d"),
        ("`a``.b`.`c\nd`", "a`.b", "c\nd"),
        ("`shop.orders", "`shop", "orders"),
    ],
)
def test_names_that_servers_allow(name: str, database: str, table: str) -> None:
    """A name in two lines is a table like any other, and a dot can be in both parts."""
    assert checked_tables([name]) == frozenset({(database, table)})


@pytest.mark.parametrize("name", ["orders", "shop.", ".orders", ""])
def test_names_without_two_parts_are_refused(name: str) -> None:
    """The message says how to write one."""
    with pytest.raises(UsageError, match=r"write it as database\.table"):
        checked_tables([name])
