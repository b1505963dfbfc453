"""The shop's load: buyers who change rows, and visitors who look at pages through the caches."""

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from functools import partial
from typing import Final

import pymysql

from databases.errors import ServerLost
from event_token import KeyRange
from event_token.errors import Halt
from shardstream.demo.cached.caches import PageView, ShopCache
from shardstream.demo.cached.catalogue import PRODUCT_IDS, PRODUCTS, all_keys, keys_of
from shardstream.demo.shop import (
    REFUSED_PAUSE_S,
    REFUSED_S_MAX,
    BackgroundWork,
    Connect,
    Pace,
    ShardDirectory,
    ShopChange,
    ShopSession,
    keyspace_id,
)

# Transactions per second on each key range; the ranges are those after the split, so that a shard
# that refuses writes delays only its own products.
SALES_PER_S: Final = {"-80": 16, "80-c0": 8, "c0-": 8}
# Two small cores also run six database servers, Kafka and the producers.
VISITORS: Final = 3
VIEWS_PER_S: Final = 150
PIECES: Final = 50
# One sale in this number changes a seasonal product instead.
SEASON_EVERY: Final = 20
# Nobody but the demo's own steps writes to these products.
QUIET: Final = range(1, 41)
# The favourites get most of the views.
FAVOUR: Final = 2.0
# Between two reads of the topology, by which the caches learn which shards serve.
TOPOLOGY_S: Final = 0.25

_INSERT_PRODUCT: Final = "INSERT INTO products VALUES (%s, %s, %s)"
_INSERT_STOCK: Final = "INSERT INTO stock VALUES (%s, %s, %s)"
_PRICE: Final = "UPDATE products SET price = %s WHERE product_id = %s"
_STOCK: Final = "UPDATE stock SET pieces = %s, sales = %s WHERE product_id = %s"
_IS_SOLD: Final = "EXISTS(SELECT 1 FROM stock WHERE product_id = %s AND sales = %s)"
_EXISTS: Final = "EXISTS(SELECT 1 FROM stock WHERE product_id = %s)"


def price_of(product_id: int, pieces: int) -> Decimal:
    """Return the price of a product: the fewer pieces are left, the dearer."""
    cents = 1_000 + 5 * product_id + 10 * (PIECES - pieces)
    return Decimal(cents).scaleb(-2)


class Catalogue:
    """The products of one key range, and the transactions on them; a product is for one thread."""

    def __init__(self, key_range: str) -> None:
        """Know the products; write nothing."""
        inside = KeyRange.parse(key_range)
        self.name = key_range
        self._chance = random.Random(key_range)  # noqa: S311 - a workload, not a secret
        self.ids = [each for each in PRODUCT_IDS if inside.contains(keyspace_id(each))]
        self._pieces = dict.fromkeys(self.ids, PIECES)
        self._sales = dict.fromkeys(self.ids, 0)
        self._gone = {each for each in self.ids if each > PRODUCTS}
        self._sold = [each for each in self.ids if each <= PRODUCTS and each not in QUIET]

    def first(self) -> list[ShopChange]:
        """Return the transactions that fill the tables."""
        return [self._insert(each) for each in self.ids if each <= PRODUCTS]

    def any_change(self) -> tuple[int, ShopChange]:
        """Return a product and the next transaction on it."""
        seasonal = [each for each in self.ids if each > PRODUCTS]
        if seasonal and self._chance.randrange(SEASON_EVERY) == 0:
            product_id = self._chance.choice(seasonal)
            return product_id, self._season(product_id)
        product_id = self._chance.choice(self._sold)
        return product_id, self.sale(product_id)

    def sale(self, product_id: int) -> ShopChange:
        """Return the sale of one piece, which changes the price too; an empty stock is filled."""
        pieces = self._pieces[product_id] = (self._pieces[product_id] - 1) % (PIECES + 1)
        sales = self._sales[product_id] = self._sales[product_id] + 1
        statements = (
            (_PRICE, [(price_of(product_id, pieces), product_id)]),
            (_STOCK, [(pieces, sales, product_id)]),
        )
        return ShopChange(product_id, statements, (_IS_SOLD, (product_id, sales)))

    def price(self, product_id: int) -> Decimal:
        """Return the price of a product as it was last written."""
        return price_of(product_id, self._pieces[product_id])

    def _season(self, product_id: int) -> ShopChange:
        if product_id in self._gone:
            self._gone.remove(product_id)
            return self._insert(product_id)
        self._gone.add(product_id)
        statements = tuple(
            (f"DELETE FROM {table} WHERE product_id = %s", [(product_id,)])  # noqa: S608 - ours
            for table in ("products", "stock")
        )
        return ShopChange(product_id, statements, (f"NOT {_EXISTS}", (product_id,)))

    def _insert(self, product_id: int) -> ShopChange:
        row = (product_id, f"Product {product_id}", price_of(product_id, PIECES))
        statements = (
            (_INSERT_PRODUCT, [row]),
            (_INSERT_STOCK, [(product_id, PIECES, self._sales[product_id])]),
        )
        return ShopChange(product_id, statements, (_EXISTS, (product_id,)))


class ShopLoad(BackgroundWork):
    """Buyers on all key ranges, and visitors who look at each page through all caches."""

    def __init__(
        self,
        directory: ShardDirectory,
        connects: Mapping[str, Connect],
        caches: Sequence[ShopCache],
    ) -> None:
        """`connects`: to the primaries, by shard."""
        super().__init__()
        self._directory = directory
        self._connects = connects
        self._caches = caches
        self._lock = threading.Lock()
        self.sales = self.views = 0
        self._catalogues = [Catalogue(name) for name in SALES_PER_S]
        own = {key for product_id in QUIET for key in keys_of(product_id)}
        self._keys = [key for key in all_keys() if key not in own]
        random.Random(1).shuffle(self._keys)  # noqa: S311 - which are the favourites
        work: list[Callable[[], None]] = [partial(self._sell, each) for each in self._catalogues]
        work += [partial(self._view, random.Random(n)) for n in range(VISITORS)]  # noqa: S311
        self._prepare([*work, self._follow_topology])

    def check(self) -> None:
        """Raise the first error of a thread, or of a cache."""
        super().check()
        for cache in self._caches:
            cache.check()

    def fill(self) -> None:
        """Write the rows that exist before the producers start."""
        with closing(ShopSession(self._directory, self._connects)) as session:
            for catalogue in self._catalogues:
                for change in catalogue.first():
                    session.commit(change)

    def catalogue_of(self, product_id: int) -> Catalogue:
        """Return the catalogue with a product."""
        [found] = [each for each in self._catalogues if product_id in each.ids]
        return found

    def wrote(self, product_id: int) -> None:
        """Do for the caches what the application does after a commit on a product."""
        for cache in self._caches:
            cache.wrote(keys_of(product_id))

    def _sell(self, catalogue: Catalogue) -> None:
        with closing(ShopSession(self._directory, self._connects)) as session:
            pace = Pace(SALES_PER_S[catalogue.name], self._stop)
            while pace.wait():
                product_id, change = catalogue.any_change()
                session.commit(change)
                self.wrote(product_id)
                with self._lock:
                    self.sales += 1

    def _view(self, chance: random.Random) -> None:
        pace = Pace(VIEWS_PER_S / VISITORS, self._stop)
        while pace.wait():
            key = self._keys[int(len(self._keys) * chance.random() ** FAVOUR)]
            for cache in self._caches:
                view(cache, key, self._directory)
            with self._lock:
                self.views += 1

    def _follow_topology(self) -> None:
        while not self._stop.wait(TOPOLOGY_S):
            self._directory.look_again()


def view(cache: ShopCache, key: str, directory: ShardDirectory, cookie: str = "") -> PageView:
    """Look at a page; a server that is lost is looked for again. Halt if none is found."""
    began_s = time.monotonic()
    while True:
        try:
            return cache.get(key, cookie)
        except (pymysql.err.MySQLError, ServerLost) as error:
            if time.monotonic() - began_s > REFUSED_S_MAX:
                raise Halt(f"{cache.name}: {key} cannot be loaded: {error}") from error
        time.sleep(REFUSED_PAUSE_S)
        directory.look_again()
