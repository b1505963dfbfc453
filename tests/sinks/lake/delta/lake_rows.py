"""Batches for a table of current rows, and what a reader then finds in it."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from deltalake import DeltaTable

from sinks.lake.delta.commit import commit
from sinks.lake.delta.log import query_mark
from sinks.lake.delta.stored_table import (
    IndexMemory,
    StagedFiles,
    StoredTable,
    buckets_of,
    create_table,
    key_hashes,
    open_table,
)

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("paid_at", pa.timestamp("us")),
        ("_key", pa.string()),
        ("_home", pa.binary()),
        ("_shard", pa.string()),
        ("_seq", pa.int64()),
        ("_time_us", pa.int64()),
    ]
)
Row = dict[str, object]
Rows = dict[str, Row]


def row(number: int, seq: int, schema: pa.Schema = SCHEMA) -> Row:
    """A row as change `seq` leaves it."""
    shard = ("-80", "80-")[number % 2]
    home = None if number % 5 == 0 else number.to_bytes(8, "big")
    own = {"id": number, "note": f"note {seq}", "paid_at": None}
    meta = {"_key": f"[{number}]", "_home": home, "_shard": shard, "_seq": seq, "_time_us": seq}
    return {name: (own | meta).get(name) for name in schema.names}


@dataclass
class Batch:
    """Upserts and deletes, of different keys."""

    upserts: list[Row] = field(default_factory=list)
    deletes: list[str] = field(default_factory=list)

    def part(self, task: int, tasks: int) -> "Batch":
        """What one of several tasks gets."""
        return Batch(
            [found for found in self.upserts if task_of(str(found["_key"]), tasks) == task],
            [key for key in self.deletes if task_of(key, tasks) == task],
        )

    def apply(self, model: Rows) -> None:
        """Apply the batch to a model of the table."""
        model |= {str(found["_key"]): found for found in self.upserts}
        for key in self.deletes:
            model.pop(key, None)


def task_of(key: str, tasks: int) -> int:
    return int(buckets_of(key_hashes(pa.chunked_array([[key]])), tasks)[0])


def random_batch(random_: random.Random, seq: int, keys: int = 300) -> Batch:
    """Changes of up to a fifth of the keys."""
    chosen = random_.sample(range(keys), random_.randint(1, keys // 5))
    deletes = [number for number in chosen if random_.random() < 0.25]
    upserts = [row(number, seq) for number in chosen if number not in deletes]
    return Batch(upserts, [f"[{number}]" for number in deletes])


def stage(table: StoredTable, batch: Batch, part: tuple[int, int] = (0, 1)) -> StagedFiles:
    """Do what the task of a batch does."""
    mine = batch.part(*part)
    keys = pa.array([*(str(found["_key"]) for found in mine.upserts), *mine.deletes], pa.string())
    insert = pa.Table.from_pylist(mine.upserts, table.schema)
    return table.stage(table.find(keys), insert, part=part)


@dataclass
class Lake:
    """A table, and the processes of its tasks."""

    url: str
    options: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 2
    query: str = "q"
    tables: list[StoredTable] = field(default_factory=list)
    memory: IndexMemory = field(default_factory=lambda: IndexMemory(10_000_000))

    def create(self, buckets: int = 4) -> "Lake":
        create_table(self.url, self.options, SCHEMA, buckets)
        return self

    def stage(self, batch: Batch) -> list[StagedFiles]:
        """Do what the tasks of a batch do."""
        while len(self.tables) < self.tasks:
            self.tables.append(self.open())
        for table in self.tables:
            table.refresh()
        return [stage(table, batch, (i, self.tasks)) for i, table in enumerate(self.tables)]

    def commit(self, number: int, staged: Sequence[StagedFiles]) -> int:
        """Do what the driver does."""
        marks = {query_mark(self.query): number}
        return commit(self.driver, staged, marks, {"shardstream.batch_id": str(number)})

    def run(self, number: int, batch: Batch) -> int:
        return self.commit(number, self.stage(batch))

    def read(self) -> Rows:
        """What delta-rs reads; each key once."""
        return by_key(scanned(self.url, self.options))

    def open(self) -> StoredTable:
        table = open_table(self.url, self.options, self.memory)
        assert table is not None
        return table

    @cached_property
    def driver(self) -> StoredTable:
        return self.open()


def scanned(url: str, options: Mapping[str, str]) -> list[Row]:
    """The rows as delta-rs reads them."""
    table = pa.table(DeltaTable(url, storage_options=dict(options)).scan())
    return table.to_pylist()  # type: ignore[no-any-return]


def by_key(rows: Iterable[Row]) -> Rows:
    """Rows by their key; each key once."""
    found = list(rows)
    keyed = {str(each["_key"]): each for each in found}
    assert len(keyed) == len(found), "a key is there twice"
    return keyed
