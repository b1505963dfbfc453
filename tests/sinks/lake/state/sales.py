"""Random changes of orders on two shards whose clocks differ."""

import random
from decimal import Decimal

from tests.spark_consumers.shop import ORDERS, SHARDS, T0_US, Change, Shop
from tests.topics.shard_writer import CELL_US
from topics.records.table_shape import TableShape
from topics.records.vevent import Row

HOMES = {"-80": b"\x10", "80-": b"\x90"}
# Differences between the clocks of two shards, in microseconds.
SKEW_US = 30_000


class Sales:
    """Changes orders; `rows` is what is true."""

    def __init__(self, shop: Shop, seed: int, shape: TableShape = ORDERS) -> None:
        self.shop = shop
        self.shape = shape
        self.random = random.Random(seed)
        self.rows: dict[int, tuple[str, Row]] = {}
        self.now_us = T0_US + SKEW_US
        self.skew = {"-80": SKEW_US, "80-": -SKEW_US}
        self.number = 0
        self.rows_then: dict[int, Row] = {}
        self.then_us = 0

    def remember(self) -> None:
        """Remember the rows of now, and the time."""
        self.rows_then, self.then_us = self.expected(), self.now_us

    @property
    def settled_us(self) -> int:
        """A time after all changes so far, and before all that come, by any shard's clock."""
        return self.now_us - 2 * SKEW_US

    def go_on(self, steps: int) -> None:
        """Change orders, and promise that everything is there."""
        for _ in range(steps):
            self.now_us += CELL_US // 2
            self.change(self.random.randrange(12))
        self.now_us += 4 * SKEW_US
        for writer in self.shop.writers.values():
            writer.promise(self.now_us)

    def change(self, key: int) -> None:
        """Insert an order, or update, delete or move one."""
        self.number += 1
        row: Row = {"id": key, "note": f"note {self.number}", "price": Decimal(f"{self.number}.50")}
        if key not in self.rows:
            shard = self.random.choice(SHARDS)
            self.write(shard, None, row)
            self.rows[key] = (shard, row)
            return
        shard, before = self.rows[key]
        match self.random.choice(("update", "update", "delete", "move")):
            case "update":
                self.write(shard, before, row)
                self.rows[key] = (shard, row)
            case "delete":
                self.write(shard, before, None)
                del self.rows[key]
            case _:
                other = next(each for each in SHARDS if each != shard)
                self.write(other, None, row)
                self.write(shard, before, None)
                self.rows[key] = (other, row)

    def write(self, shard: str, before: Row | None, after: Row | None) -> None:
        """Write one change at the time of its shard's clock."""
        home = HOMES[shard]
        ids = (home if before else None, home if after else None)
        at_us = self.now_us + self.skew[shard]
        self.shop.writers[shard].write([Change(at_us, before, after, ids=ids, shape=self.shape)])

    def expected(self) -> dict[int, Row]:
        """The true rows."""
        return {key: row for key, (_, row) in self.rows.items()}
