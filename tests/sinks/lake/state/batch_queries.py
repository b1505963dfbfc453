"""A query without Spark: what its tasks stage and its driver commits, and may die between."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token import ShardPosition, StreamPosition
from event_token.errors import Retry
from sinks.lake.delta.commit import commit
from sinks.lake.delta.stored_table import StagedFiles, StoredTable
from sinks.lake.state import batch_commit
from sinks.lake.state.batch_commit import commit_batch
from sinks.lake.state.options import StateOptions, StateTarget
from sinks.lake.state.task import TaskTables
from sinks.resume import PlannedBatch
from tests.sinks.rule.batches import Source, no_copies, routed

SourceRow = dict[str, object]
PARTITIONS = 2


class Died(Exception):  # noqa: N818 - what happened to the driver
    """Raised where the driver is killed."""


class Query:
    """A query that may die between two commits, or lose its checkpoint, and then goes on."""

    def __init__(
        self,
        folder: Path,
        source: Source,
        *,
        history: bool = False,
        drop_columns: bool = False,
    ) -> None:
        options = StateOptions(
            partitions=PARTITIONS,
            history={"shop.orders": ()} if history else {},
            drop_columns=drop_columns,
        )
        self.target = StateTarget(str(folder), {}, options)
        self.choose()
        self.source = source
        self.position = StreamPosition(0, 0)
        self.name, self.batch_id = "q0", 0
        self.names = 0

    def choose(self, **options: Any) -> None:
        """Go on with other options, in other workers."""
        chosen = replace(self.target.options, **options)
        self.target = replace(self.target, options=chosen)
        self.tasks = [TaskTables(self.target, no_copies) for _ in range(PARTITIONS)]

    def run(
        self, rows: list[SourceRow], commits: int | None = None, frontier_us: int | None = None
    ) -> None:
        """Run a batch; Died after `commits` commits."""
        end = self._end(rows, frontier_us)
        batch = PlannedBatch(self.name, self.batch_id, self.position, end)
        works = [
            work
            for task, tables in enumerate(self.tasks)
            for work in tables.work(
                routed(rows, PARTITIONS, task),
                self.source.decoder,
                (self.name, self.batch_id),
                task,
            )
        ]
        with dying_after(commits):
            commit_batch(self.target, works, batch)
        self.position, self.batch_id = end, self.batch_id + 1

    def run_until_done(self, rows: list[SourceRow]) -> None:
        """Run a batch again for as long as its tables had to be rewritten first."""
        for _ in range(3):
            with suppress(Retry):
                return self.run(rows)
        return self.run(rows)

    def lose_checkpoint(self) -> None:
        """Go on as another query, from the target's position."""
        self.names += 1
        self.name, self.batch_id = f"q{self.names}", 0

    def _end(self, rows: list[SourceRow], frontier_us: int | None) -> StreamPosition:
        seqs = {shard: at.seq for shard, at in self.position.shards.items()}
        for row in rows:
            shard = str(row["shard"])
            seqs[shard] = max(seqs.get(shard, 0), int(str(row["seq"])))
        shards = {shard: ShardPosition(seq, seq, None) for shard, seq in seqs.items()}
        return StreamPosition(0, frontier_us or self.position.frontier_us + 1, shards)


@contextmanager
def dying_after(commits: int | None) -> Iterator[None]:
    """Let the driver die after a number of commits; None: it lives."""
    left = iter(range(1_000_000 if commits is None else commits))

    def commit_or_die(table: StoredTable, staged: Sequence[StagedFiles], *what: Any) -> int:
        if next(left, None) is None:
            raise Died
        return commit(table, staged, *what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_commit, "commit", commit_or_die)
        yield


def visible(folder: Path) -> dict[str, int]:
    """The value of each key, as delta-rs reads it."""
    path = str(folder / "shop" / "orders")
    if not DeltaTable.is_deltatable(path):  # No batch has left a row.
        return {}
    rows = pa.table(DeltaTable(path).scan()).to_pylist()
    found = {row["_key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found
