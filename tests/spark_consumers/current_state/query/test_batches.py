"""Batches of a query, without Spark: what its tasks stage and its driver commits."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from event_token import ShardPosition, StreamPosition
from spark_consumers.current_state.commit import Entry, commit
from spark_consumers.current_state.query import batch_commit
from spark_consumers.current_state.query.batch_commit import commit_batch
from spark_consumers.current_state.query.task import Target, TaskTables
from spark_consumers.current_state.stored_table import Staged, StoredTable
from spark_consumers.errors import CannotApply
from spark_consumers.sink_query.resume import PlannedBatch
from tests.generated import examples
from tests.spark_consumers.applying.batches import Source, change, event_of, routed, statement
from tests.spark_consumers.applying.histories import History
from topics.records.vevent import EventType

SourceRow = dict[str, object]
PARTITIONS = 2


class Died(Exception):  # noqa: N818 - what happened to the driver
    """Raised where the driver is killed."""


class Query:
    """A query that may die between two commits, or lose its checkpoint, and then goes on."""

    def __init__(self, folder: Path, source: Source, *, vectors: bool = True) -> None:
        self.target = Target(str(folder), {}, PARTITIONS, PARTITIONS, deletion_vectors=vectors)
        self.tasks = [TaskTables(self.target) for _ in range(PARTITIONS)]
        self.source = source
        self.position = StreamPosition(0, 0)
        self.name, self.batch_id = "q0", 0
        self.names = 0

    def run(self, rows: list[SourceRow], commits: int | None = None) -> None:
        """Run a batch; Died after `commits` commits."""
        end = self._end(rows)
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

    def lose_checkpoint(self) -> None:
        """Go on as another query, from the target's position."""
        self.names += 1
        self.name, self.batch_id = f"q{self.names}", 0

    def _end(self, rows: list[SourceRow]) -> StreamPosition:
        seqs = {shard: at.seq for shard, at in self.position.shards.items()}
        for row in rows:
            shard = str(row["shard"])
            seqs[shard] = max(seqs.get(shard, 0), int(str(row["seq"])))
        shards = {shard: ShardPosition(seq, seq, None) for shard, seq in seqs.items()}
        return StreamPosition(0, self.position.frontier_us + 1, shards)


@contextmanager
def dying_after(commits: int | None) -> Iterator[None]:
    """Let the driver die after a number of commits; None: it lives."""
    left = iter(range(1_000_000 if commits is None else commits))

    def commit_or_die(table: StoredTable, staged: Sequence[Staged], entry: Entry) -> int:
        if next(left, None) is None:
            raise Died
        return commit(table, staged, entry)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_commit, "commit", commit_or_die)
        yield


def visible(folder: Path) -> dict[str, int]:
    """The value of each key, as delta-rs reads it."""
    path = folder / "shop" / "orders"
    if not path.exists():
        return {}
    rows = pa.table(DeltaTable(str(path)).scan()).to_pylist()
    found = {row["_key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@settings(max_examples=examples(20), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50), st.booleans())
def test_any_batches_and_deaths_leave_the_rows(random: Random, steps: int, vectors: bool) -> None:
    """Moves, skewed clocks, splits, TRUNCATE; the driver dies anywhere, checkpoints get lost."""
    history = History(random)
    history.run(steps)
    log = sorted(history.log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))
    source = Source()
    rows = source.rows(event_of(record) for record in log)
    with tempfile.TemporaryDirectory() as folder:
        query = Query(Path(folder), source, vectors=vectors)
        done = 0
        while done < len(rows):
            batch = rows[done : done + random.randint(1, 25)]
            if random.random() < 0.5:
                try:
                    query.run(batch, commits=random.randint(0, 1))
                except Died:
                    if random.random() < 0.5 and query.batch_id:
                        query.lose_checkpoint()
                    query.run(batch)
            else:
                query.run(batch)
            done += len(batch)

        found = visible(Path(folder))
    values: dict[str, list[int]] = {}
    for (key, _), row in history.rows.items():
        values.setdefault(f"[{key}]", []).append(json.loads(row)["value"])
    # Of a row that is moving, both homes are live for a while.
    assert found.keys() == values.keys()
    assert all(found[key] in of for key, of in values.items())


def test_a_skip_stops_the_query_until_it_is_accepted(tmp_path: Path) -> None:
    """A skipped transaction may have changed rows, so an operator must accept it by its GTID."""
    source = Source()
    query = Query(tmp_path, source)
    skip = statement("-80", 2, 110, "{}", kind=EventType.SKIP)
    events = [change("-80", 1, 100, None, {"id": 1, "value": 7}), skip]
    rows = source.rows(events)

    with pytest.raises(CannotApply, match=f"accept_skip=.*{skip.gtid}"):
        query.run(rows)
    query.tasks = [
        TaskTables(replace(query.target, accept_skip=frozenset([skip.gtid])))
        for _ in range(PARTITIONS)
    ]
    query.run(rows)

    assert visible(tmp_path) == {"[1]": 7}
