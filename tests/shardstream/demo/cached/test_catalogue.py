"""The pages of the cached shop, and which entries count as wrong."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from shardstream.demo.cached.catalogue import (
    PRODUCT_IDS,
    all_keys,
    all_pages,
    keys_of,
    load,
    page_of,
    pages,
)
from shardstream.demo.cached.load import PIECES, price_of
from shardstream.demo.cached.proof import compare

ROWS = [(product_id, f"name {product_id}", Decimal("9.90"), 3) for product_id in (1, 2, 5, 440)]


def _read(_sql: str, product_id: int, *, on: int) -> Sequence[Any]:
    assert on == product_id
    return [row[1:] for row in ROWS if row[0] == product_id]


def test_pages_are_what_their_loaders_return() -> None:
    """The proof compares entries with the pages that a loader makes of the same rows."""
    truth = all_pages(ROWS)

    assert truth == {key: load(_read, key) for key in all_keys()}
    assert truth["product:3"] is None
    assert truth["shelf:0"] == [page_of("name 1", Decimal("9.90"), 3), truth["product:2"]]


def test_prices_are_as_the_column_has_them() -> None:
    """What was written is compared with what a page says: 10.20 is not 10.2."""
    assert str(price_of(2, PIECES - 1)) == "10.20"


def test_a_row_names_every_page_that_shows_it() -> None:
    """The invalidator removes the product's own page and that of its shelf."""
    for product_id in PRODUCT_IDS:
        alone = all_pages([(product_id, "name", Decimal(1), 1)])
        shown = {key for key, page in alone.items() if page}

        assert shown == set(keys_of(product_id)) == set(pages({"product_id": product_id}))


def test_entries_that_differ_from_the_rows_are_counted() -> None:
    """A price of yesterday is wrong, and so is a page of a product that is gone, and its lack."""
    truth = all_pages(ROWS)
    entries = {
        "product:1": truth["product:1"],
        "product:2": truth["product:2"] | {"price": "9.80"},
        "product:3": page_of("gone", Decimal(1), 1),
        "product:4": None,
        "product:5": None,
    }

    found = compare(entries, truth)

    assert found.entries == 5
    assert [each.key for each in found.differences] == ["product:2", "product:3", "product:5"]
