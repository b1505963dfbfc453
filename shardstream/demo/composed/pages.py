"""The composed shop's pages, one per customer, behind a cache in Redis; and the proof of the cache.

The database servers are those of the settings; the shop's accounts share one password.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from typing import Any, Final, cast

import pymysql

from caching.client.reads import Read
from caching.key_map import KeyMap, RowImage
from caching.reading.fresh_reader import FreshReader
from shardstream.cache import Cache
from shardstream.demo.shop import DATABASE, IN_UTC, Connect, ShardDirectory, keyspace_id
from shardstream.settings.model import Settings

KEYSPACE: Final = "commerce"
CACHE: Final = "pages"
READER: Final = "reader"
# One password for the accounts of a shop that sells nothing.
PASSWORD_VARIABLE: Final = "SHOP_PASSWORD"  # noqa: S105 - the name of a variable
# A server that is killed resets connections at once; one whose host is gone says nothing.
CONNECT_TIMEOUT_S: Final = 10
READ_TIMEOUT_S: Final = 60
# An invalidator follows within milliseconds, or after a minute on a machine that does ten things.
AGREE_S_MAX: Final = 120.0
PAUSE_S: Final = 1.0

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


def connects(settings: Settings, user: str) -> dict[str, Connect]:
    """Return how to connect to each shard, also to targets, with an account of the shop."""
    shards = settings.keyspace(KEYSPACE).all_shards
    return {shard: _connect(each.servers[0], user) for shard, each in shards.items()}


def _connect(server: Any, user: str) -> Connect:
    return lambda: pymysql.connect(
        host=server.host,
        port=server.port,
        user=user,
        password=os.environ.get(PASSWORD_VARIABLE, ""),
        database=DATABASE,
        charset="utf8mb4",
        init_command=IN_UTC,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        ssl_disabled=True,
    )


class PageCache:
    """The cache with a reader per shard; after a reshard it reads from the new shards."""

    def __init__(self, settings: Settings, directory: ShardDirectory) -> None:
        """Connect to nothing yet."""
        self._cleanup = ExitStack()
        shards = settings.keyspace(KEYSPACE).all_shards
        clock = settings.clock_uncertainty()
        self._readers = {
            shard: self._cleanup.enter_context(
                FreshReader(KEYSPACE, shard, [connect], flavor=shards[shard].flavor, clock=clock)
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


def check_pages(settings: Settings, say: Callable[[str], None]) -> bool:
    """Read every customer's page from the cache and from the database; True if all agree.

    The shop must be stopped. Waits for pages that are not invalidated yet.
    """
    directory = ShardDirectory(KEYSPACE, settings.kafka_client())
    wanted = _pages(settings, directory)
    with closing(PageCache(settings, directory)) as cache:
        ends_s = time.monotonic() + AGREE_S_MAX
        while True:
            different = [each for each, page in wanted.items() if cache.page(each) != page]
            if not different or time.monotonic() > ends_s:
                break
            time.sleep(PAUSE_S)
        hits = cache.counters().get("hits", 0)
    say(f"pages: {len(wanted)} compared, {len(different)} different; {hits} hits")
    return bool(wanted) and not different


def _pages(settings: Settings, directory: ShardDirectory) -> dict[int, dict[str, Any]]:
    """Return the pages of all customers, as the shards that serve them hold them."""
    found = {}
    shards = connects(settings, READER)
    for entry in directory.entries:
        with shards[entry.name]() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT customer_id, code FROM coupons ORDER BY code")
            coupons: dict[int, list[str]] = {}
            for customer, code in cursor.fetchall():
                coupons.setdefault(customer, []).append(code)
            cursor.execute("SELECT id, name, balance FROM customers")
            for customer, name, balance in cursor.fetchall():
                if entry.key_range.contains(keyspace_id(customer)):
                    found[customer] = page_of(name, balance, coupons.get(customer, []))
    return found
