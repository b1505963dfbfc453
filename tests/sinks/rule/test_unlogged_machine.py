"""Statements that change values, copies behind them, batches cut anywhere: the rows are right."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from event_token.errors import Retry
from sinks.rule.columns import KnownTable
from sinks.rule.statements import Unlogged
from sinks.rule.task_changes import FollowedTables
from tests.generated import examples
from tests.sinks.rule.batches import ORDERS, Source, change, statement
from tests.sinks.rule.reference_sink import ReferenceTable
from topics.records.vevent import Row, VEvent

NAME = (ORDERS.database, ORDERS.table)
SHADOW = replace(ORDERS, table="_orders_new")
HOMES = {"-80": b"\x10", "80-": b"\x90"}
ALTERS = (
    ("ALTER TABLE orders MODIFY value BIGINT",),
    ("ALTER TABLE orders ADD COLUMN c INT NOT NULL",),
    ("RENAME TABLE orders TO _orders_old, _orders_new TO orders", "DROP TABLE _orders_old"),
    ("DROP TABLE IF EXISTS orders", "RENAME TABLE _orders_new TO orders"),
    ("alter table orders rename _orders_del", "alter table _orders_gho rename orders"),
)


@dataclass
class Shard:
    """A server, its log, and its producer's copy of the table: when it began, and what is left."""

    name: str
    rows: dict[int, int] = field(default_factory=dict)
    seq: int = 0
    begun_seq: int = 0
    left: list[int] = field(default_factory=list)


@dataclass
class World:
    """Shards that are altered each at its own time, and a sink that may be killed."""

    random: Random
    shards: list[Shard] = field(default_factory=lambda: [Shard(name) for name in HOMES])
    log: list[VEvent] = field(default_factory=list)
    read: int = 0
    source: Source = field(default_factory=Source)
    sink: ReferenceTable = field(default_factory=ReferenceTable)
    is_known: bool = False

    def run(self, steps: int) -> None:
        """Take random steps, then end all copies and let the sink read everything."""
        chosen = [self.write] * 4 + [self.delete, self.alter, self.copy, self.copy, self.follow]
        for _ in range(steps):
            self.random.choice(chosen)(self.random.choice(self.shards))
        while self.read < len(self.log) or any(shard.left for shard in self.shards):
            for shard in self.shards:
                self.copy(shard)
            self._read_to(len(self.log), deaths=0.0)

    def write(self, shard: Shard) -> None:
        """Insert or update a row; some are those of a shadow table."""
        key = 2 * self.random.randrange(5) + self.shards.index(shard)
        if self.random.random() < 0.2:
            self._row(shard, None, {"id": key, "value": -1}, shadow=True)
            return
        before = shard.rows.get(key)
        shard.rows[key] = self.random.randrange(100)
        old: Row | None = None if before is None else {"id": key, "value": before}
        self._row(shard, old, {"id": key, "value": shard.rows[key]})

    def delete(self, shard: Shard) -> None:
        """Delete a row."""
        if shard.rows:
            key = self.random.choice(sorted(shard.rows))
            self._row(shard, {"id": key, "value": shard.rows.pop(key)}, None)

    def alter(self, shard: Shard) -> None:
        """Give all rows other values, of which no event tells."""
        shard.rows = {key: value + 1000 for key, value in shard.rows.items()}
        for text in self.random.choice(ALTERS):
            shard.seq += 1
            self.log.append(statement(shard.name, shard.seq, len(self.log), text))

    def copy(self, shard: Shard) -> None:
        """Let the producer copy some rows."""
        for key in shard.left[:2]:
            if key in shard.rows:
                self._row(shard, None, {"id": key, "value": shard.rows[key]}, copied=True)
        del shard.left[:2]

    def follow(self, _: Shard) -> None:
        """Let the sink apply a batch, or die before it has."""
        self._read_to(self.random.randint(self.read, len(self.log)), deaths=0.3)

    def _read_to(self, end: int, deaths: float) -> None:
        known = {NAME: KnownTable(ORDERS)} if self.is_known else {}
        following = FollowedTables(known=known, on_unlogged=partial(self._have_copied, deaths))
        with suppress(Retry):
            for changes in self.source.changes(self.log[self.read : end], following, partitions=2):
                self.sink.apply(changes)
                self.is_known = True
            self.read = end

    def _have_copied(self, deaths: float, found: Sequence[Unlogged]) -> None:
        """Begin copies that have not begun behind their statements, as producers do."""
        for each in found:
            [shard] = [shard for shard in self.shards if shard.name == each.at.shard]
            if shard.begun_seq <= each.at.seq:
                shard.begun_seq, shard.left = shard.seq + 1, sorted(shard.rows)
            if self.random.random() < deaths:
                raise Retry("killed")

    def _row(
        self,
        shard: Shard,
        before: Row | None,
        after: Row | None,
        *,
        shadow: bool = False,
        copied: bool = False,
    ) -> None:
        shard.seq += 1
        home = HOMES[shard.name]
        ids = (None if before is None else home, None if after is None else home)
        shape = SHADOW if shadow else ORDERS
        place = (shard.name, shard.seq, len(self.log))
        self.log.append(change(*place, before, after, ids=ids, shape=shape, copied=copied))


@settings(max_examples=examples(30), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_sink_has_what_the_servers_have(random: Random, steps: int) -> None:
    """ALTERs and swaps of each shard at its own time, copies that begin again, a sink that dies."""
    world = World(random)

    world.run(steps)

    expected = {key: value for shard in world.shards for key, value in shard.rows.items()}
    found = [version.row for version in world.sink.main.values()]
    assert {row["id"]: row["value"] for row in found if isinstance(row, dict)} == expected
