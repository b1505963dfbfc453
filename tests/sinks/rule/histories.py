"""Random histories of one table over several shards: what the log holds, and the true rows."""

import json
from dataclasses import dataclass, field
from random import Random

from event_token import EventToken, Flavor, ShardName, parse_gtid_set
from sinks.lake.change_log.reading import AppliedTable, Applier, Change
from sinks.rule.batch_statements import Statements

UUID = "3e11fa47-71ca-11e1-9e33-{:012x}"
KEYS = 6
HOMES = (b"\x10", b"\x30", b"\x90", b"\xa0", b"\xe0", b"\xf0")
SKEW_US_MAX = 40
START_US = 1_000_000


def applied(log: list[Change], order: Random | None = None) -> AppliedTable:
    """The table that a log gives; its changes are applied in the order of the log, or mixed."""
    statements = Statements()
    for record in log:
        if record["type"] == "DDL":
            statements.add(record)
    rows = [record for record in log if record["type"] == "ROW"]
    if order is not None:
        order.shuffle(rows)
    applier = Applier(statements)
    applier.apply(rows)
    return applier.finish().get(("shop", "orders"), AppliedTable())


@dataclass
class Shard:
    """A server and its log; its clock is ahead or behind by `skew_us`."""

    name: str
    number: int
    skew_us: int
    clock_us: int
    seq: int = 0

    def holds(self, home: bytes) -> bool:
        """Whether a keyspace id lies in the shard."""
        return ShardName.parse(self.name).key_range.contains(home)


@dataclass
class History:
    """Executes random operations on true rows and logs what each server would log."""

    random: Random
    keys: int = KEYS
    shards: list[Shard] = field(default_factory=list)
    log: list[Change] = field(default_factory=list)
    # The true rows: by key and home.
    rows: dict[tuple[int, bytes], str] = field(default_factory=dict)
    # Rows that were inserted elsewhere and are still to be deleted at their old home.
    leaving: list[tuple[int, bytes]] = field(default_factory=list)
    now_us: int = START_US
    values: int = 0
    made: int = 0

    def __post_init__(self) -> None:
        """Start with two shards."""
        for name in ("-80", "80-"):
            self._add_shard(name, 0)

    def run(self, steps: int) -> None:
        """Execute operations, then delete the rows that are leaving."""
        operations = [self.put] * 5 + [self.delete, self.move, self.move, self.rename]
        operations += [self.finish_move, self.finish_move, self.copy, self.truncate, self.split]
        for _ in range(steps):
            self.now_us += self.random.randint(0, 15)
            self.random.choice(operations)()
        while self.leaving:
            self.finish_move()

    def put(self) -> None:
        """Insert or update a row."""
        self._put(self.random.randrange(self.keys), self.random.choice(HOMES))

    def _put(self, key: int, home: bytes) -> None:
        shard = self._shard_of(home)
        before = self._home_on(shard, key)
        self.values += 1
        row = json.dumps({"id": key, "value": self.values})
        if before is not None:
            old = self.rows.pop((key, before))
            self.leaving = [place for place in self.leaving if place != (key, before)]
            self._row(shard, key, (old, before), (row, home))
        else:
            self._row(shard, key, None, (row, home))
        self.rows[key, home] = row

    def delete(self) -> None:
        """Delete a row."""
        if self.rows:
            self._delete(*self.random.choice(sorted(self.rows)))

    def _delete(self, key: int, home: bytes) -> None:
        row = self.rows.pop((key, home))
        self.leaving = [place for place in self.leaving if place != (key, home)]
        self._row(self._shard_of(home), key, (row, home), None)

    def move(self) -> None:
        """Move a row to another home: insert there first, or delete here first."""
        if not self.rows:
            return
        key, home = self.random.choice(sorted(self.rows))
        target = self.random.choice(HOMES)
        if self._shard_of(target) is self._shard_of(home):
            self._put(key, target)
        elif self.random.random() < 0.5:
            self._delete(key, home)
            self._put(key, target)
        else:
            self._put(key, target)
            self.leaving.append((key, home))

    def finish_move(self) -> None:
        """Delete a row that was inserted elsewhere."""
        if self.leaving:
            self._delete(*self.leaving[0])

    def rename(self) -> None:
        """Give a row another key."""
        key = self.random.randrange(self.keys)
        if not self.rows:
            return
        old_key, home = self.random.choice(sorted(self.rows))
        shard = self._shard_of(home)
        if self._home_on(shard, key) is not None or (old_key, home) in self.leaving:
            return
        old = self.rows.pop((old_key, home))
        self.values += 1
        row = json.dumps({"id": key, "value": self.values})
        self.rows[key, home] = row
        self._row(shard, key, (old, home), (row, home), old_key=old_key)

    def copy(self) -> None:
        """Log a row as a copy does."""
        if self.rows:
            key, home = self.random.choice(sorted(self.rows))
            self._row(self._shard_of(home), key, None, (self.rows[key, home], home))

    def truncate(self) -> None:
        """Empty the table on one shard."""
        if self.random.random() < 0.7:
            return
        shard = self.random.choice(self.shards)
        gone = {place for place in self.rows if shard.holds(place[1])}
        self.rows = {place: row for place, row in self.rows.items() if place not in gone}
        self.leaving = [place for place in self.leaving if place not in gone]
        statement = self.random.choice(
            ["TRUNCATE orders", "DROP TABLE IF EXISTS `orders`", "truncate table shop.orders"]
        )
        self._record(shard, type="DDL", statement=statement)

    def split(self) -> None:
        """Split a shard: its targets go on where it ends."""
        wide = [shard for shard in self.shards if shard.name in {"-80", "80-"}]
        if not wide or self.random.random() < 0.7:
            return
        source = self.random.choice(wide)
        self.shards.remove(source)
        for name in {"-80": ("-20", "20-80"), "80-": ("80-c0", "c0-")}[source.name]:
            self._add_shard(name, source.clock_us + 1)

    def _add_shard(self, name: str, clock_us: int) -> None:
        self.made += 1
        skew_us = self.random.randint(-SKEW_US_MAX, SKEW_US_MAX)
        self.shards.append(Shard(name, self.made, skew_us, clock_us))

    def _shard_of(self, home: bytes) -> Shard:
        [shard] = [shard for shard in self.shards if shard.holds(home)]
        return shard

    def _home_on(self, shard: Shard, key: int) -> bytes | None:
        """The home of a key's row on a shard, where a key is unique."""
        homes = [home for k, home in self.rows if k == key and shard.holds(home)]
        return homes[0] if homes else None

    def _row(
        self,
        shard: Shard,
        key: int,
        before: tuple[str, bytes] | None,
        after: tuple[str, bytes] | None,
        old_key: int | None = None,
    ) -> None:
        self._record(
            shard,
            type="ROW",
            table="orders",
            key=f"[{key}]",
            old_key=None if old_key is None else f"[{old_key}]",
            before=None if before is None else before[0],
            after=None if after is None else after[0],
            keyspace_id_before=None if before is None else before[1],
            keyspace_id_after=None if after is None else after[1],
        )

    def _record(self, shard: Shard, **fields: object) -> None:
        shard.seq += 1
        shard.clock_us = max(shard.clock_us, self.now_us + shard.skew_us)
        position = parse_gtid_set(f"{UUID.format(shard.number)}:1-{shard.seq}", Flavor.MYSQL)
        nothing: dict[str, object] = dict.fromkeys(
            ("key", "old_key", "before", "after", "absent", "statement")
        )
        nothing |= dict.fromkeys(("keyspace_id_before", "keyspace_id_after"))
        self.log.append(
            nothing
            | {
                "database": "shop",
                "table": "",
                "shard": shard.name,
                "seq": shard.seq,
                "offset": shard.seq,
                "timestamp_us": shard.clock_us,
                "token": EventToken(shard.clock_us, shard.name, position).to_string(),
            }
            | fields
        )
