"""The shop's pages: the rows that they are made of, and the pages that a changed row touches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final, cast

from caching.key_map import KeyMap, RowImage
from event_token.errors import UsageError

TABLES: Final = """
CREATE TABLE products (
  product_id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  name VARCHAR(80) NOT NULL,
  price DECIMAL(10,2) NOT NULL
);
CREATE TABLE stock (
  product_id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  pieces INT NOT NULL,
  sales BIGINT NOT NULL
);
"""
SHARDING_COLUMNS: Final = {"products": "product_id", "stock": "product_id"}

# Products with these ids exist from the beginning; the seasonal ones behind them come and go, and
# their pages are negative entries while they are gone.
PRODUCTS: Final = 400
SEASONAL: Final = 40
PRODUCT_IDS: Final = range(1, PRODUCTS + SEASONAL + 1)
# Products per shelf. The vindex spreads them, so most shelves are made of rows of several shards.
SHELF: Final = 4
SHELVES: Final = range((len(PRODUCT_IDS) + SHELF - 1) // SHELF)

# Runs a query on the shard of `on`, and returns its rows.
Read = Callable[..., Sequence[Any]]
Page = dict[str, Any]

_COLUMNS: Final = "name, price, pieces FROM products JOIN stock USING (product_id)"
_ONE: Final = f"SELECT {_COLUMNS} WHERE product_id = %s"
ALL: Final = f"SELECT product_id, {_COLUMNS}"

KEYS = KeyMap()


@KEYS.of("shop.products", "shop.stock")
def pages(row: RowImage) -> Iterator[str]:
    """Yield the keys of the pages that show a product."""
    yield from keys_of(cast("int", row["product_id"]))


def product_key(product_id: int) -> str:
    """Return the cache key of a product's page."""
    return f"product:{product_id}"


def shelf_key(shelf: int) -> str:
    """Return the cache key of a shelf's page."""
    return f"shelf:{shelf}"


def keys_of(product_id: int) -> tuple[str, str]:
    """Return the keys of the pages that show a product."""
    return product_key(product_id), shelf_key((product_id - 1) // SHELF)


def all_keys() -> list[str]:
    """Return the keys of all pages, also of products that do not exist now."""
    return [*map(product_key, PRODUCT_IDS), *map(shelf_key, SHELVES)]


def products_on(shelf: int) -> range:
    """Return the ids of a shelf's products."""
    return range(shelf * SHELF + 1, (shelf + 1) * SHELF + 1)


def page_of(name: str, price: Decimal, pieces: int) -> Page:
    """Return a product's page."""
    return {"name": name, "price": str(price), "pieces": pieces}


def load_product(read: Read, product_id: int) -> Page | None:
    """Load a product's page; None if there is no such product."""
    rows = read(_ONE, product_id, on=product_id)
    return page_of(*rows[0]) if rows else None


def load_shelf(read: Read, shelf: int) -> list[Page]:
    """Load a shelf's page, from the shards of its products."""
    pages = (load_product(read, product_id) for product_id in products_on(shelf))
    return [page for page in pages if page is not None]


def load(read: Read, key: str) -> Page | list[Page] | None:
    """Load the page of a key."""
    match key.split(":"):
        case ["product", number]:
            return load_product(read, int(number))
        case ["shelf", number]:
            return load_shelf(read, int(number))
        case _:
            raise UsageError(f"no page has the key {key}")


def all_pages(rows: Iterable[tuple[int, str, Decimal, int]]) -> dict[str, Any]:
    """Return all pages as the rows of all shards have them (`ALL`)."""
    products = {
        product_id: page_of(name, price, pieces) for product_id, name, price, pieces in rows
    }
    found: dict[str, Any] = {product_key(each): products.get(each) for each in PRODUCT_IDS}
    for shelf in SHELVES:
        on_shelf = (products.get(product_id) for product_id in products_on(shelf))
        found[shelf_key(shelf)] = [page for page in on_shelf if page is not None]
    return found
