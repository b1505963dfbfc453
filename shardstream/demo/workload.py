"""A shop's traffic: orders are created, changed and deleted, and coupons move between shards."""

import json
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import count, islice
from typing import Any, Final

from event_token import KeyRange
from shardstream.demo.shop import (
    BackgroundWork,
    CommittedChange,
    Connect,
    Pace,
    ShardDirectory,
    ShopChange,
    ShopSession,
    keyspace_id,
)

# Each writer serves the customers of one key range, so that a shard that refuses writes delays only
# its own customers. Transactions per second: lively on the screen, and light enough to leave two
# small cores to the servers, the producers and Spark.
TRANSACTIONS_PER_S: Final = {"-80": 30, "80-c0": 15, "c0-": 15}
FIRST_CUSTOMERS: Final = 200
FIRST_TRANSACTIONS: Final = 250
COUPONS: Final = tuple(f"C{i:08d}" for i in range(20))
MOVE_INTERVAL_S: Final = 0.1
# An occasional bulk change shows that large transactions stay whole.
BULK_ORDERS: Final = 160
BULK_EVERY: Final = 500
_CITIES: Final = ("Köln", "Zürich", "Málaga", "Oslo", "Turin", None)
_INTERESTS: Final = ("books", "music", "sport", "travel")
_INSERT_CUSTOMER: Final = "INSERT INTO customers VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
_INSERT_ORDER: Final = "INSERT INTO orders VALUES (%s, %s, 'open', %s, %s, %s)"
_INSERT_ITEM: Final = "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
_HAS_ORDER: Final = "EXISTS(SELECT 1 FROM orders WHERE id = %s)"
_HAS_COUPON: Final = "EXISTS(SELECT 1 FROM coupons WHERE code = %s)"


@dataclass
class Ledger:
    """What the workload has changed: the number of row changes that must be in the log.

    `refused`: transactions that a shard refused and that were repeated.
    """

    changes: int = 0
    transactions: int = 0
    moves: int = 0
    refused: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, committed: CommittedChange, moves: int = 0) -> None:
        """Count one committed transaction."""
        with self._lock:
            self.changes += committed.rows
            self.transactions += 1
            self.moves += moves
            self.refused += committed.refusals > 0


class ShopWorkload(BackgroundWork):
    """Writers on all key ranges, and one that moves coupons across shards.

    `travel_s`: the time between a coupon's deletion on one shard and its insertion on another. If
    commit times are whole seconds, a shorter time would leave the order of the two undecided.
    `first_id`: above the ids that earlier runs on these tables have given out.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        connects: Mapping[str, Connect],
        travel_s: float = 0.0,
        *,
        first_id: int = 1,
    ) -> None:
        super().__init__()
        self.ledger = Ledger()
        self._directory = directory
        self._connects = connects
        self._travel_s = travel_s
        self._writers = [_Writer(key_range, first_id) for key_range in TRANSACTIONS_PER_S]
        self._homes: dict[str, int] = {}  # customers of the coupons that are not in transit
        writers = [partial(self._write, writer) for writer in self._writers]
        self._prepare([*writers, self._move_coupons])

    def write_first(self) -> Iterator[CommittedChange]:
        """Write the first customers, orders and coupons; yield each transaction."""
        with closing(ShopSession(self._directory, self._connects)) as session:
            yield from map(session.commit, self._first_changes())

    def _first_changes(self) -> Iterator[ShopChange]:
        for writer in self._writers:
            yield writer.new_customers(FIRST_CUSTOMERS)
            yield from map(writer.transaction, range(FIRST_TRANSACTIONS))
        for code in COUPONS:
            self._homes[code] = self._writers[0].first_customer
            yield _insert_coupon(code, self._homes[code], 0)

    def _write(self, writer: "_Writer") -> None:
        with closing(ShopSession(self._directory, self._connects)) as session:
            pace = Pace(TRANSACTIONS_PER_S[writer.name], self._stop)
            number = FIRST_TRANSACTIONS
            while pace.wait():
                self.ledger.add(session.commit(writer.transaction(number)))
                number += 1

    def _move_coupons(self) -> None:
        """Delete a coupon on one shard, then insert it on another: order across shards."""
        chance = random.Random(1)  # noqa: S311 - a workload, not a secret
        in_transit: deque[tuple[float, str, str]] = deque()
        value = 0
        with closing(ShopSession(self._directory, self._connects)) as session:
            while not self._stop.wait(MOVE_INTERVAL_S):
                while in_transit and in_transit[0][0] <= time.monotonic():
                    _, code, shard_before = in_transit.popleft()
                    value += 1
                    customer = chance.choice(self._writers).first_customer
                    done = session.commit(_insert_coupon(code, customer, value))
                    self.ledger.add(done, moves=done.shard != shard_before)
                    self._homes[code] = customer
                if self._homes:
                    code = chance.choice(list(self._homes))
                    done = session.commit(_delete_coupon(code, self._homes.pop(code)))
                    self.ledger.add(done)
                    in_transit.append((time.monotonic() + self._travel_s, code, done.shard))


def _insert_coupon(code: str, customer: int, value: int) -> ShopChange:
    row = (code, customer, Decimal(value) / 4)
    statement = ("INSERT INTO coupons VALUES (%s, %s, %s)", [row])
    return ShopChange(customer, (statement,), (_HAS_COUPON, (code,)))


def _delete_coupon(code: str, customer: int) -> ShopChange:
    statement = ("DELETE FROM coupons WHERE code = %s", [(code,)])
    return ShopChange(customer, (statement,), (f"NOT {_HAS_COUPON}", (code,)))


class _Writer:
    """Makes the transactions of one key range's customers."""

    def __init__(self, name: str, first_id: int) -> None:
        self.name = name
        key_range = KeyRange.parse(name)
        # Order ids contain the range's first byte, as in an application with blocks of ids.
        self._block = (key_range.start[:1] or b"\0")[0]
        self._chance = random.Random(name)  # noqa: S311 - a workload, not a secret
        self._new_ids = (c for c in count(first_id) if key_range.contains(keyspace_id(c)))
        self._next_order = first_id
        self._customers: list[int] = []
        self._orders: dict[int, int] = {}  # order id -> customer

    @property
    def first_customer(self) -> int:
        return self._customers[0]

    def transaction(self, number: int) -> ShopChange:
        """Return the next transaction; its number marks the rows that it writes."""
        if number % BULK_EVERY == BULK_EVERY - 1:
            return self._bulk(number)
        roll = self._chance.random()
        if roll < 0.45 or not self._orders:
            return self._place_order()
        if roll < 0.75:
            return self._advance_order(number)
        if roll < 0.85:
            return self._delete_order()
        if roll < 0.95:
            return self._touch_customer(number)
        return self.new_customers(1)

    def new_customers(self, number: int) -> ShopChange:
        """Return a transaction with new customers of the key range."""
        new = list(islice(self._new_ids, number))
        self._customers += new
        statement = (_INSERT_CUSTOMER, [self._customer_row(customer) for customer in new])
        condition = "EXISTS(SELECT 1 FROM customers WHERE id = %s)"
        return ShopChange(new[0], (statement,), (condition, (new[0],)))

    def _customer_row(self, customer: int) -> tuple[Any, ...]:
        chance = self._chance
        return (
            customer,
            f"Customer {customer} ✓",
            chance.choice(_CITIES),
            chance.choice(("bronze", "silver", "gold")),
            ",".join(i for i in _INTERESTS if chance.random() < 0.5),
            Decimal(chance.randrange(-10_000, 1_000_000)) / 100,
            date(1940, 1, 1) + timedelta(days=chance.randrange(25_000)),
            json.dumps({"theme": chance.choice(("dark", "light")), "pages": [customer, 2.5]}),
            datetime.now(UTC).replace(tzinfo=None),
        )

    def _place_order(self) -> ShopChange:
        chance = self._chance
        order = self._next_order * 256 + self._block
        self._next_order += 1
        customer = chance.choice(self._customers)
        lines = chance.randrange(1, 5)
        row = (
            order,
            customer,
            Decimal(chance.randrange(100, 90_000)) / 100,
            chance.choice((None, "gift", "händle with care 📦")),
            datetime.now(UTC).replace(tzinfo=None),
        )
        items = [
            (
                order,
                line,
                customer,
                f"SKU{chance.randrange(10**6):06d}",
                chance.randrange(1, 9),
                Decimal(chance.randrange(100, 20_000)) / 100,
                chance.choice((None, 0.1, 2.5, 13.37)),
                chance.randbytes(8),
            )
            for line in range(lines)
        ]
        self._orders[order] = customer
        statements = ((_INSERT_ORDER, [row]), (_INSERT_ITEM, items))
        return ShopChange(customer, statements, (_HAS_ORDER, (order,)))

    def _advance_order(self, number: int) -> ShopChange:
        order = self._chance.choice(list(self._orders)[-200:])
        status = self._chance.choice(("paid", "sent", "returned"))
        note = f"step {number}"
        statement = (
            "UPDATE orders SET status = %s, note = %s WHERE id = %s",
            [(status, note, order)],
        )
        condition = "EXISTS(SELECT 1 FROM orders WHERE id = %s AND note = %s)"
        return ShopChange(self._orders[order], (statement,), (condition, (order, note)))

    def _delete_order(self) -> ShopChange:
        order = self._chance.choice(list(self._orders)[:200])
        customer = self._orders.pop(order)
        statements = (
            ("DELETE FROM order_items WHERE order_id = %s", [(order,)]),
            ("DELETE FROM orders WHERE id = %s", [(order,)]),
        )
        return ShopChange(customer, statements, (f"NOT {_HAS_ORDER}", (order,)))

    def _touch_customer(self, number: int) -> ShopChange:
        customer = self._chance.choice(self._customers)
        statement = (
            "UPDATE customers SET balance = balance + 1, preferences = %s WHERE id = %s",
            [(json.dumps({"visits": number}), customer)],
        )
        condition = (
            "EXISTS(SELECT 1 FROM customers WHERE id = %s "
            "AND JSON_EXTRACT(preferences, '$.visits') = %s)"
        )
        return ShopChange(customer, (statement,), (condition, (customer, number)))

    def _bulk(self, number: int) -> ShopChange:
        orders = list(self._orders)[:BULK_ORDERS]
        label = number.to_bytes(4, "big")
        statement = (
            "UPDATE order_items SET quantity = quantity + 1, label = %s WHERE order_id IN %s",
            [(label, orders)],
        )
        condition = "EXISTS(SELECT 1 FROM order_items WHERE order_id = %s AND label = %s)"
        return ShopChange(self._orders[orders[0]], (statement,), (condition, (orders[0], label)))
