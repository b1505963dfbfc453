"""The shop's pages, one per customer, behind a cache in Redis; and the visitors who read them."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import Any, Final, cast

from caching.client.reads import Read
from caching.errors import Stale
from caching.key_map import KeyMap, RowImage
from caching.reading.fresh_reader import FreshReader
from databases.errors import ServerLost
from event_token.errors import Retry
from shardstream.cache import Cache
from shardstream.demo.background import BackgroundWork
from shardstream.demo.composed.servers import KEYSPACE, READER, connects
from shardstream.demo.sharded_writes import ShardDirectory
from shardstream.settings.model import Settings

CACHE: Final = "pages"
# Few enough that most views are hits, although every tenth transaction changes a customer.
CUSTOMERS: Final = 100
VIEW_INTERVAL_S: Final = 0.05

KEYS = KeyMap()


@KEYS.of("shop.customers")
def page_of_customer(row: RowImage) -> Iterator[str]:
    """Yield the key of the customer's page."""
    yield page_key(cast("int", row["id"]))


@KEYS.of("shop.coupons")
def page_of_coupon(row: RowImage) -> Iterator[str]:
    """Yield the key of the page of the coupon's owner."""
    yield page_key(cast("int", row["customer_id"]))


def page_key(customer: int) -> str:
    """Return the cache key of a customer's page."""
    return f"customer:{customer}"


def load_page(read: Read, customer: int) -> dict[str, Any] | None:
    """Load a customer's page; None if there is no such customer."""
    rows = read("SELECT name, balance FROM customers WHERE id = %s", customer, on=customer)
    if not rows:
        return None
    coupons = read(
        "SELECT code FROM coupons WHERE customer_id = %s ORDER BY code", customer, on=customer
    )
    name, balance = rows[0]
    return page_of(name, balance, [code for (code,) in coupons])


def page_of(name: str, balance: Decimal, coupons: Sequence[str]) -> dict[str, Any]:
    """Return a customer's page."""
    return {"name": name, "balance": str(balance), "coupons": list(coupons)}


class PageCache:
    """The cache with a reader per shard; after a reshard it reads from the new shards."""

    def __init__(self, settings: Settings, directory: ShardDirectory) -> None:
        """Connect to nothing yet."""
        self._cleanup = ExitStack()
        shards = settings.keyspace(KEYSPACE).all_shards
        self._readers = {
            shard: self._cleanup.enter_context(
                FreshReader(KEYSPACE, shard, [connect], flavor=shards[shard].flavor)
            )
            for shard, connect in connects(settings, READER).items()
        }
        self._directory = directory
        self._serving = directory.serving
        self._cache = Cache.from_settings(None, CACHE, self._of_serving())
        self._cleanup.callback(self._cache.close)

    def page(self, customer: int) -> dict[str, Any] | None:
        """Return a customer's page, from the cache or from the database."""
        if self._serving != self._directory.serving:
            self._serving = self._directory.serving
            self._cache.set_readers(self._of_serving())
        return cast(
            "dict[str, Any] | None",
            self._cache.get_or_load(page_key(customer), lambda read: load_page(read, customer)),
        )

    def counters(self) -> Mapping[str, int | float]:
        """Return what the cache has counted."""
        return self._cache.counters()

    def close(self) -> None:
        """Disconnect."""
        self._cleanup.close()

    def _of_serving(self) -> dict[str, FreshReader]:
        return {shard: self._readers[shard] for shard in self._serving}


class Visitors(BackgroundWork):
    """One thread that reads pages; a server that is being restarted is visited again later."""

    def __init__(self, settings: Settings, directory: ShardDirectory, first_id: int) -> None:
        """Read nothing yet; `first_id`: the customers whose pages are read begin here."""
        super().__init__()
        self.views = 0
        self._settings = settings
        self._directory = directory
        self._first_id = first_id
        self._prepare([self._visit])

    def _visit(self) -> None:
        cache = PageCache(self._settings, self._directory)
        chance = random.Random(1)  # noqa: S311 - a workload, not a secret
        try:
            while not self._stop.wait(VIEW_INTERVAL_S):
                try:
                    cache.page(self._first_id + chance.randrange(CUSTOMERS))
                except (ServerLost, Stale, Retry):
                    continue
                self.views += 1
        finally:
            cache.close()
