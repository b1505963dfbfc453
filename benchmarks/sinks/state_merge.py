"""Current rows in a lake: batches of changes merged into a large table, beside delta-rs' `merge`.

A batch has 100,000 changes of random keys, a tenth of them new; a twentieth are deletes. Ours
includes the compactions that the batches make necessary; delta-rs' merge needs none.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.figures import PER_MESSAGES, Figure, Turn, figure
from benchmarks.stack import Stack
from event_token.errors import Halt
from sinks.lake.delta.commit import commit
from sinks.lake.delta.log import query_mark
from sinks.lake.delta.stored_table import StoredTable, create_table, open_table

MILLION: Final = 1_000_000
_ROWS: Final = {"state.merge_1m": MILLION, "state.merge_5m": 5 * MILLION}
NAMES: Final = tuple(_ROWS)
PEER: Final = "delta-rs merge"
BUCKETS: Final = 16
BATCH_ROWS: Final = 100_000
# Enough for each bucket to be compacted once or twice.
OUR_BATCHES: Final = 24
QUICK_BATCHES: Final = 12
TEXTS: Final = 20_000
DELETED: Final = 0.05
START_US: Final = 1_790_000_000_000_000
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cost:
    """What some batches took."""

    changes: int
    wall_s: float
    cpu_s: float

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of both."""
        return Cost(
            self.changes + other.changes, self.wall_s + other.wall_s, self.cpu_s + other.cpu_s
        )

    @property
    def per_s(self) -> float:
        """Changes per second."""
        return self.changes / self.wall_s

    @property
    def cpu_s_per_100k(self) -> float:
        """Processor seconds per 100,000 changes."""
        return self.cpu_s * PER_MESSAGES / self.changes


class Changes:
    """Makes rows; the same seed gives the same ones."""

    def __init__(self, rows: int) -> None:
        self._random = np.random.default_rng(7)
        letters = self._random.integers(97, 123, (TEXTS, 60)).astype(np.uint8)
        self._texts = pa.array([bytes(text).decode() for text in letters])
        self._rows = self._next = rows

    def base(self) -> Iterator[pa.Table]:
        """The table, in parts."""
        for start in range(0, self._rows, MILLION):
            yield self.rows(np.arange(start, min(self._rows, start + MILLION), dtype=np.int64), 0)

    def batch(self, number: int) -> tuple[pa.Table, pa.Array]:
        """Return changed rows, and which of them are deletes."""
        new = np.arange(self._next, self._next + BATCH_ROWS // 10, dtype=np.int64)
        self._next += len(new)
        old = self._random.choice(self._rows, BATCH_ROWS - len(new), replace=False)
        changed = self._random.permutation(np.concatenate([old, new]))
        return self.rows(changed, number), pa.array(self._random.random(BATCH_ROWS) < DELETED)

    def rows(self, ids: Numbers, number: int) -> pa.Table:
        """Return the rows of some ids as batch `number` leaves them."""
        count, random = len(ids), self._random
        homes = pa.Array.from_buffers(pa.binary(8), count, [None, pa.py_buffer(ids.tobytes())])
        order = np.arange(count) + number * 10 * MILLION
        shards = pa.array(["-40", "40-80", "80-c0", "c0-"])
        columns = {
            "id": pa.array(ids),
            "customer_id": pa.array(random.integers(0, MILLION, count)),
            "amount": pa.array(random.random(count)),
            "note": self._texts.take(pa.array(random.integers(0, TEXTS, count))),
            "updated_at": pa.array(order + START_US, pa.timestamp("us", tz="UTC")),
            "_key": pc.binary_join_element_wise("[", pc.cast(pa.array(ids), pa.string()), "]", ""),
            "_home": homes.cast(pa.binary()),
            "_shard": shards.take(pa.array(ids % 4)),
            "_seq": pa.array(order),
            "_time_us": pa.array(order + START_US),
        }
        return pa.table(columns)


def run(stack: Stack, names: tuple[str, ...], *, runs: int, quick: bool) -> list[Figure]:
    """Measure both writers on tables of the same rows, one after the other in each turn."""
    figures = []
    for name in names:
        stack.report(f"{name}: {_ROWS[name]:,} rows into two tables")
        with TemporaryDirectory(dir=stack.folder) as folder:
            turns = _turns(Path(folder), Changes(_ROWS[name]), runs, quick=quick)
        rates = [Turn(ours.per_s, theirs.per_s) for ours, theirs in turns]
        cpu = [Turn(ours.cpu_s_per_100k, theirs.cpu_s_per_100k) for ours, theirs in turns]
        figures.append(figure(name, "changes/s", rates, peer=PEER))
        figures.append(figure(f"{name}_cpu", "CPU s/100k", cpu, peer=PEER))
    return figures


def _turns(folder: Path, changes: Changes, runs: int, *, quick: bool) -> list[tuple[Cost, Cost]]:
    ours, theirs = str(folder / "ours"), str(folder / "theirs")
    sample = changes.rows(np.arange(1, dtype=np.int64), 0)
    create_table(ours, {}, sample.schema, BUCKETS)
    table, driver = _opened(ours), _opened(ours)
    numbers = iter(range(10**9))
    for rows in changes.base():
        staged = table.stage(None, rows, compact=False)
        commit(driver, [staged], {query_mark("bench"): next(numbers)})
        table.refresh()
        write_deltalake(theirs, rows, mode="append")
    # A table that has been there for a while has no backlog of compactions.
    while (staged := table.stage(None, sample.schema.empty_table())).rewritten:
        commit(driver, [staged])
        table.refresh()

    def merge_ours(rows: pa.Table, deleted: pa.Array) -> None:
        table.refresh()
        staged = table.stage(table.find(rows["_key"]), rows.filter(pc.invert(deleted)))
        commit(driver, [staged], {query_mark("bench"): next(numbers)})

    def merge_theirs(rows: pa.Table, deleted: pa.Array) -> None:
        marked = rows.append_column("_deleted", deleted)
        merge = DeltaTable(theirs).merge(marked, "s.id = t.id", "s", "t")
        is_row = "s._deleted = false"
        columns = {name: f"s.{name}" for name in rows.schema.names}
        merge = merge.when_matched_update(columns, is_row)
        merge.when_matched_delete("s._deleted").when_not_matched_insert(columns, is_row).execute()

    count = QUICK_BATCHES if quick else OUR_BATCHES
    return [
        (_cost(merge_ours, changes, numbers, count), _cost(merge_theirs, changes, numbers, 2))
        for _ in range(runs)
    ]


def _cost(
    merge: Callable[[pa.Table, pa.Array], None],
    changes: Changes,
    numbers: Iterator[int],
    count: int,
) -> Cost:
    wall_s = cpu_s = 0.0
    for _ in range(count):
        rows, deleted = changes.batch(next(numbers))
        wall_begun_s, cpu_begun_s = time.monotonic(), time.process_time()
        merge(rows, deleted)
        wall_s += time.monotonic() - wall_begun_s
        cpu_s += time.process_time() - cpu_begun_s
    return Cost(count * BATCH_ROWS, wall_s, cpu_s)


def _opened(url: str) -> StoredTable:
    table = open_table(url, {})
    if table is None:
        raise Halt(f"{url} has not been created")
    return table
