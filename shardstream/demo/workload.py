"""A shop's traffic on two shards: orders come, change and go, and coupons move between shards."""

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib.resources import files
from typing import Any

from event_token import ShardName

DATABASE = "shop"
# Transactions a second on each shard: lively on the screen, and light enough to leave two small
# cores to the servers, the producers and Spark.
TRANSACTIONS_PER_S = 120
FIRST_CUSTOMERS = 300
FIRST_TRANSACTIONS = 400
COUPONS = tuple(f"C{i:08d}" for i in range(20))
# A bulk change now and then shows that large transactions stay whole.
BULK_ROWS = 400
BULK_EVERY = 500
_CITIES = ("Köln", "Zürich", "Málaga", "Oslo", "Turin", None)
_INTERESTS = ("books", "music", "sport", "travel")

Connect = Callable[[], Any]


def keyspace_id(customer_id: int) -> bytes:
    """Eight evenly spread bytes: how this shop's application chooses the shard of a customer."""
    return hashlib.blake2b(customer_id.to_bytes(8, "big"), digest_size=8).digest()


@dataclass
class Ledger:
    """What the workload knows it has changed: the number of row changes that must be in the log."""

    changes: int = 0
    transactions: int = 0
    moves: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, changes: int, moves: int = 0) -> None:
        """Count one committed transaction."""
        with self._lock:
            self.changes += changes
            self.transactions += 1
            self.moves += moves


def create_tables(connect: Connect) -> None:
    """Create the shop's database and tables on one shard."""
    script = files("shardstream.demo").joinpath("shop.sql").read_text()
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        for statement in script.split(";\n"):
            if statement.strip():
                cursor.execute(statement)


def _count_rows(connect: Connect) -> int:
    with connect() as connection, connection.cursor() as cursor:
        count = 0
        for table in ("customers", "orders", "order_items", "coupons"):
            cursor.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")  # noqa: S608 - our own
            count += cursor.fetchone()[0]
        return count


class ShopWorkload:
    """Writers on all shards, one thread a shard and one that moves coupons across them."""

    def __init__(self, shards: Mapping[str, Connect], ledger: Ledger, seed: int = 1) -> None:
        self._shards = dict(shards)
        self._ledger = ledger
        self._seed = seed
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self._writers: dict[str, _ShardWriter] = {}
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._write_shard, shard), daemon=True)
            for shard in self._shards
        ]
        self._threads.append(
            threading.Thread(target=self._guarded, args=(self._move_coupons, ""), daemon=True)
        )

    def fill(self) -> int:
        """Write what the shop holds before anybody listens; return how many rows that is."""
        for shard, connect in self._shards.items():
            writer = _ShardWriter(shard, connect, random.Random(f"{self._seed}{shard}"))  # noqa: S311 - a workload, not a secret
            self._writers[shard] = writer
            writer.first_customers()
            for number in range(FIRST_TRANSACTIONS):
                writer.transaction(number)
        with next(iter(self._shards.values()))() as connection:
            for code in COUPONS:
                _insert_coupon(connection, code, 0)
        return sum(_count_rows(connect) for connect in self._shards.values())

    def start(self) -> None:
        """Begin to write, after `fill`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the transactions in hand; raises what a writer met."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]

    def _guarded(self, work: Callable[[str], None], shard: str) -> None:
        try:
            work(shard)
        except Exception as error:  # noqa: BLE001 - kept for stop(), which raises it
            self._errors.append(error)

    def _write_shard(self, shard: str) -> None:
        writer = self._writers[shard]
        with writer.connection:
            began = time.monotonic()
            done = 0
            while not self._stop.is_set():
                self._ledger.add(writer.transaction(done))
                done += 1
                ahead_s = began + done / TRANSACTIONS_PER_S - time.monotonic()
                if ahead_s > 0:
                    self._stop.wait(ahead_s)

    def _move_coupons(self, _: str) -> None:
        """A coupon is deleted on one shard and then inserted on another: order across shards."""
        connections = [connect() for connect in self._shards.values()]
        try:
            home = dict.fromkeys(COUPONS, 0)
            chance = random.Random(self._seed)  # noqa: S311 - a workload, not a secret
            moves = 0
            while not self._stop.wait(0.05):
                code = chance.choice(COUPONS)
                source = connections[home[code]]
                home[code] = (home[code] + 1) % len(connections)
                with source.cursor() as cursor:
                    cursor.execute("DELETE FROM shop.coupons WHERE code = %s", (code,))
                source.commit()
                self._ledger.add(1)
                moves += 1
                _insert_coupon(connections[home[code]], code, moves)
                self._ledger.add(1, moves=1)
        finally:
            for connection in connections:
                connection.close()


def _insert_coupon(connection: Any, code: str, value: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO shop.coupons VALUES (%s, %s, %s)",
            (code, value + 1, Decimal(value) / 4),
        )
    connection.commit()


class _ShardWriter:
    """The transactions of one shard; each method returns the row changes that it committed."""

    def __init__(self, shard: str, connect: Connect, chance: random.Random) -> None:
        self.connection = connect()
        self._key_range = ShardName.parse(shard).key_range
        self._chance = chance
        self._customers: list[int] = []
        self._orders: dict[int, int] = {}  # order id -> lines
        self._next_customer = 1
        self._next_order = 1
        self._cursor = self.connection.cursor()
        self._cursor.execute(f"USE {DATABASE}")

    def first_customers(self) -> int:
        for _ in range(FIRST_CUSTOMERS):
            self._insert_customer()
        self.connection.commit()
        return FIRST_CUSTOMERS

    def transaction(self, number: int) -> int:
        if number % BULK_EVERY == BULK_EVERY - 1:
            changes = self._bulk(number)
        else:
            roll = self._chance.random()
            if roll < 0.45 or not self._orders:
                changes = self._place_order()
            elif roll < 0.75:
                changes = self._advance_order(number)
            elif roll < 0.85:
                changes = self._delete_order()
            elif roll < 0.95:
                changes = self._touch_customer(number)
            else:
                changes = self._insert_customer()
        self.connection.commit()
        return changes

    def _insert_customer(self) -> int:
        while not self._key_range.contains(keyspace_id(self._next_customer)):
            self._next_customer += 1
        customer = self._next_customer
        self._next_customer += 1
        self._customers.append(customer)
        chance = self._chance
        self._cursor.execute(
            "INSERT INTO customers VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            (
                customer,
                f"Customer {customer} ✓",
                chance.choice(_CITIES),
                chance.choice(("bronze", "silver", "gold")),
                ",".join(i for i in _INTERESTS if chance.random() < 0.5),
                Decimal(chance.randrange(-10_000, 1_000_000)) / 100,
                date(1940, 1, 1) + timedelta(days=chance.randrange(25_000)),
                json.dumps({"theme": chance.choice(("dark", "light")), "pages": [customer, 2.5]}),
                datetime.now(UTC).replace(tzinfo=None),
            ),
        )
        return 1

    def _place_order(self) -> int:
        chance = self._chance
        # Ids are told apart by the shard's first byte, as an application with id blocks would do.
        order = self._next_order * 256 + (self._key_range.start[:1] or b"\0")[0]
        self._next_order += 1
        lines = chance.randrange(1, 5)
        self._cursor.execute(
            "INSERT INTO orders VALUES (%s, %s, 'open', %s, %s, %s)",
            (
                order,
                chance.choice(self._customers),
                Decimal(chance.randrange(100, 90_000)) / 100,
                chance.choice((None, "gift", "händle with care 📦")),
                datetime.now(UTC).replace(tzinfo=None),
            ),
        )
        items = [
            (
                order,
                line,
                f"SKU{chance.randrange(10**6):06d}",
                chance.randrange(1, 9),
                Decimal(chance.randrange(100, 20_000)) / 100,
                chance.choice((None, 0.1, 2.5, 13.37)),
                chance.randbytes(8),
            )
            for line in range(lines)
        ]
        self._cursor.executemany(
            "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, %s, %s)", items
        )
        self._orders[order] = lines
        return 1 + lines

    def _advance_order(self, number: int) -> int:
        order = self._chance.choice(list(self._orders)[-200:])
        self._cursor.execute(
            "UPDATE orders SET status = %s, note = %s WHERE id = %s",
            (self._chance.choice(("paid", "sent", "returned")), f"step {number}", order),
        )
        return int(self._cursor.rowcount)

    def _delete_order(self) -> int:
        order = self._chance.choice(list(self._orders)[:200])
        lines = self._orders.pop(order)
        self._cursor.execute("DELETE FROM order_items WHERE order_id = %s", (order,))
        self._cursor.execute("DELETE FROM orders WHERE id = %s", (order,))
        return lines + 1

    def _touch_customer(self, number: int) -> int:
        self._cursor.execute(
            "UPDATE customers SET balance = balance + 1, preferences = %s WHERE id = %s",
            (json.dumps({"visits": number}), self._chance.choice(self._customers)),
        )
        return int(self._cursor.rowcount)

    def _bulk(self, number: int) -> int:
        self._cursor.execute(
            "UPDATE order_items SET quantity = quantity + 1, label = %s LIMIT %s",
            (number.to_bytes(4, "big"), BULK_ROWS),
        )
        return int(self._cursor.rowcount)
