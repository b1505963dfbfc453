"""Random changes of orders, among them moves between shards."""

import random
from decimal import Decimal
from typing import Any

from tests.spark_consumers.shop import SHARDS, Change, Shop
from tests.topics.shard_writer import CELL_US

HOMES = {"-80": b"\x10", "80-": b"\x90"}


class MovingOrders:
    """Random changes of orders on two shards, and the rows that the databases have after them."""

    def __init__(self, shop: Shop, seed: int) -> None:
        self.rows: dict[int, tuple[str, dict[str, Any]]] = {}
        self._shop = shop
        self._random = random.Random(seed)
        self._next = 1

    def run(self, steps: int) -> None:
        """Change, then let the frontier pass."""
        for _ in range(steps):
            self._shop.now_us += 100
            self._step()
        self._shop.now_us += CELL_US
        for writer in self._shop.writers.values():
            writer.promise(self._shop.now_us)

    def _step(self) -> None:
        change = self._random.choice((self._insert, self._insert, self._update, self._rekey))
        if self.rows and self._random.random() < 0.4:
            change = self._random.choice((self._delete, self._move))
        change()

    def _row(self, number: int) -> dict[str, Any]:
        price = Decimal(self._random.randrange(10**6)).scaleb(-2)
        note = self._random.choice(["", "ü€𝄞", "plain", None])
        return {"id": number, "note": note, "price": self._random.choice([None, price])}

    def _write(
        self,
        shard: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        more_us: int = 0,
    ) -> None:
        home = HOMES[shard]
        ids = (None if before is None else home, None if after is None else home)
        at_us = self._shop.now_us + more_us
        self._shop.writers[shard].write([Change(at_us, before, after, ids=ids)])

    def _chosen(self) -> tuple[int, str, dict[str, Any]]:
        number = self._random.choice(sorted(self.rows))
        shard, row = self.rows[number]
        return number, shard, row

    def _insert(self) -> None:
        shard, row = self._random.choice(SHARDS), self._row(self._next)
        self._write(shard, None, row)
        self.rows[self._next] = shard, row
        self._next += 1

    def _update(self) -> None:
        if not self.rows:
            return
        number, shard, before = self._chosen()
        after = self._row(number)
        self._write(shard, before, after)
        self.rows[number] = shard, after

    def _rekey(self) -> None:
        if not self.rows:
            return
        number, shard, before = self._chosen()
        after = {**before, "id": self._next}
        self._write(shard, before, after)
        del self.rows[number]
        self.rows[self._next] = shard, after
        self._next += 1

    def _delete(self) -> None:
        number, shard, before = self._chosen()
        self._write(shard, before, None)
        del self.rows[number]

    def _move(self) -> None:
        """Insert on the other shard and delete here; by the clocks, in either order."""
        number, shard, row = self._chosen()
        other = next(each for each in SHARDS if each != shard)
        is_deleted_first = self._random.random() < 0.3
        self._write(shard, row, None, 1 if is_deleted_first else 3)
        self._write(other, None, row, 2)
        self.rows[number] = other, row
