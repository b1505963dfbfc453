"""Which pages a changed row touches, as the invalidator asks for it."""

from collections.abc import Iterator
from typing import cast

from caching.key_map import KeyMap, RowImage
from shardstream.demo.cached.catalogue import keys_of

KEYS = KeyMap()


@KEYS.of("shop.products", "shop.stock")
def pages(row: RowImage) -> Iterator[str]:
    """Yield the keys of the pages that show a product."""
    yield from keys_of(cast("int", row["product_id"]))
