"""Batches of a query, without Spark: what its tasks stage and its driver commits."""

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sinks.lake.state.task import TaskTables
from spark_consumers.state import parse_options
from tests.generated import examples
from tests.sinks.lake.state.batch_queries import (
    PARTITIONS,
    Died,
    Query,
    visible,
)
from tests.sinks.rule.batches import Source, change, event_of, statement
from tests.sinks.rule.histories import History, applied
from tests.sinks.rule.late_rows import held_back, merged
from topics.errors import CannotApply
from topics.records.vevent import EventType


@settings(max_examples=examples(8), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_any_batches_and_deaths_leave_the_rows(random: Random, steps: int) -> None:
    """Moves, skewed clocks, splits, TRUNCATE; the driver dies anywhere, checkpoints get lost."""
    history = History(random)
    history.run(steps)
    log = sorted(history.log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))
    source = Source()
    rows = source.rows(event_of(record) for record in log)
    with tempfile.TemporaryDirectory() as folder:
        query = Query(Path(folder), source)
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


@settings(max_examples=examples(5), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 50))
def test_late_rows_and_replays_leave_the_rows(random: Random, steps: int) -> None:
    """Late rows, possible duplicates, batches that run again or that another query reads again."""
    history = History(random)
    history.run(steps)
    source = Source()
    rows = held_back(random, source, merged(history.log))
    with tempfile.TemporaryDirectory() as folder:
        query = Query(Path(folder), source)
        while rows:
            batch, rows = rows[: (size := random.randint(1, 25))], rows[size:]
            again = query.position, query.batch_id
            with suppress(Died):
                query.run(batch, commits=random.choice([None, 0, 1, 2]))
            if query.batch_id == again[1] and again[1] and random.random() < 0.5:
                # Another batch of another query is run in the place of the one that was cut off.
                query.lose_checkpoint()
                cut = random.randint(1, len(batch))
                query.run(batch[:cut])
                batch = batch[cut:]
                again = query.position, query.batch_id
            if batch:
                # Spark runs a batch again if it does not know that it has ended.
                query.position, query.batch_id = again
                query.run(batch)
                replayed = query.position, query.batch_id
                query.position, query.batch_id = again
                query.run(batch)
                assert replayed == (query.position, query.batch_id)

        found = visible(Path(folder))
    true_rows = applied(history.log).by_key()
    assert found == {key: json.loads(str(row.row))["value"] for key, row in true_rows.items()}


def test_a_skip_stops_the_query_until_it_is_accepted(tmp_path: Path) -> None:
    """A skipped transaction may have changed rows, so an operator must accept it by its GTID."""
    source = Source()
    query = Query(tmp_path, source)
    skip = statement("-80", 2, 110, "{}", kind=EventType.SKIP)
    events = [change("-80", 1, 100, None, {"id": 1, "value": 7}), skip]
    rows = source.rows(events)

    with pytest.raises(CannotApply, match=f"accept_skip=.*--accept-skip {skip.gtid}"):
        query.run(rows)
    query.choose(accept_skip=(skip.gtid,))
    query.run(rows)

    assert visible(tmp_path) == {"[1]": 7}


def test_a_truncate_stops_the_query_until_it_is_to_be_applied(tmp_path: Path) -> None:
    """With `stop` the rows stay, and the next start may apply the statement."""
    query = Query(tmp_path, Source())
    query.run(query.source.rows([change("-80", 1, 100, None, {"id": 1, "value": 7})]))
    truncate = query.source.rows([statement("-80", 2, 110, "TRUNCATE orders")])
    options = {"path": str(tmp_path), "checkpointLocation": "c", "onTruncate": "stop"}
    stopping = parse_options({**options, "kafka.bootstrap.servers": "b:1"}).target
    applying = query.tasks

    query.tasks = [TaskTables(stopping) for _ in range(PARTITIONS)]
    with pytest.raises(CannotApply, match=r"shop.orders, shard -80, seq 2: .*--on-truncate apply"):
        query.run(truncate)
    before = visible(tmp_path)
    query.tasks = applying
    query.run(truncate)

    assert (before, visible(tmp_path)) == ({"[1]": 7}, {})
