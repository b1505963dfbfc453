"""`--drop-columns`: a column leaves the table once no live shard has it."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token import ShardPosition, StreamPosition
from event_token.errors import Retry, UsageError
from sinks.lake.state import batch_commit
from sinks.lake.state.batch_commit import drop_columns, rewrite
from sinks.lake.state.frontiers import Frontiers, table_as_of
from sinks.resume import PlannedBatch
from spark_consumers.state import parse_options
from tests.sinks.lake.state.batch_queries import Died, Query
from tests.sinks.rule.batches import Source, change
from tests.sinks.rule.dropped_columns import (
    ADD,
    AS_NUMBER,
    FIRST,
    NEW,
    dropped,
    insert,
)
from topics.records.vevent import Row, VEvent

Values = dict[int, tuple[object, ...]]
AGAIN = insert("-80", 4, {"id": 3, "note": "z", "gone": 7}, AS_NUMBER)


def dropping_query(folder: Path, *, history: bool = False) -> Query:
    """A query that drops columns."""
    return Query(folder, Source(), history=history, drop_columns=True)


def take(query: Query, events: Sequence[VEvent]) -> None:
    """Run a batch."""
    query.run_until_done(query.source.rows(events))


def hop(query: Query, to: Sequence[str]) -> None:
    """Let the stream go on with other shards."""
    shards = {shard: query.position.shards.get(shard, ShardPosition(0, 0, None)) for shard in to}
    at_us = query.position.frontier_us + 1
    after = StreamPosition(1, at_us, shards)
    batch = PlannedBatch(query.name, query.batch_id, query.position, after)
    batch_commit.commit_batch(query.target, [], batch)
    query.position, query.batch_id = after, query.batch_id + 1


def columns(folder: Path, below: str = "shop/orders") -> list[str]:
    """The source's columns of a table, as delta-rs has them; rows are read with them."""
    table = DeltaTable(str(folder / below))
    names = [field.name for field in table.schema().fields if not field.name.startswith("_")]
    assert pa.table(table.scan(columns=names)).column_names == names
    return names


def values(folder: Path, *names: str) -> Values:
    """Some columns by id."""
    rows = pa.table(DeltaTable(str(folder / "shop" / "orders")).scan()).to_pylist()
    return {row["id"]: tuple(row[name] for name in names) for row in sorted(rows, key=_id)}


def _id(row: dict[str, int]) -> int:
    return row["id"]


def test_a_column_is_dropped_when_no_shard_has_it(tmp_path: Path) -> None:
    """DROP COLUMN: one shard is altered before the other; the second one drops the column."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [dropped("-80", 3), insert("-80", 4, {"id": 3, "note": "z"}, NEW)])
    assert values(tmp_path, "gone") == {1: ("a",), 2: ("b",), 3: (None,)}

    take(query, [dropped("80-", 5)])

    assert columns(tmp_path) == columns(tmp_path, "_shardstream/shop/orders") == ["id", "note"]
    assert values(tmp_path, "note") == {1: ("x",), 2: ("y",), 3: ("z",)}
    moved = change("-80", 5, 900, {"id": 1, "note": "x"}, {"id": 1, "note": "w"}, shape=NEW)
    take(query, [moved, insert("80-", 6, {"id": 4, "note": "v"}, NEW)])
    assert values(tmp_path, "note") == {1: ("w",), 2: ("y",), 3: ("z",), 4: ("v",)}


def test_rows_alone_tell_that_a_column_is_gone(tmp_path: Path) -> None:
    """DROP COLUMN by gh-ost: no statement names the column; each shard's next row tells."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [insert("-80", 3, {"id": 3, "note": "z"}, NEW)])
    assert "gone" in columns(tmp_path)

    take(query, [insert("80-", 4, {"id": 4, "note": "w"}, NEW)])

    assert columns(tmp_path) == ["id", "note"]


def test_a_column_of_the_same_name_begins_empty(tmp_path: Path) -> None:
    """DROP COLUMN, later ADD COLUMN of another type: the old values do not come back."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [dropped("-80", 3), dropped("80-", 3)])

    take(query, [AGAIN])

    assert values(tmp_path, "gone") == {1: (None,), 2: (None,), 3: (7,)}
    take(query, [insert("80-", 4, {"id": 4, "note": "z", "gone": 8}, AS_NUMBER)])
    assert values(tmp_path, "gone") == {1: (None,), 2: (None,), 3: (7,), 4: (8,)}


@pytest.mark.parametrize("together", [True, False])
def test_a_shard_adds_the_column_again_before_all_dropped_it(
    tmp_path: Path, *, together: bool
) -> None:
    """DROP and ADD on one shard: only its rows lose the values, those of the other keep them."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    rest = [
        insert("-80", 3, {"id": 3, "gone": "c", "note": "v"}),
        dropped("-80", 4),
        dropped("-80", 5, ADD),
        insert("-80", 6, {"id": 4, "gone": "new", "note": "z"}),
    ]

    for events in [rest] if together else ([event] for event in rest):
        take(query, events)

    assert values(tmp_path, "gone") == {1: (None,), 2: ("b",), 3: (None,), 4: ("new",)}


def test_a_shard_that_ended_does_not_count(tmp_path: Path) -> None:
    """Hop: 80- had the column to its end; those that follow it are asked, not 80- itself."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [dropped("-80", 3)])
    hop(query, ("-80", "80-c0", "c0-"))
    take(query, [insert("80-c0", 4, {"id": 4, "note": "w"}, NEW)])
    assert "gone" in columns(tmp_path)

    take(query, [dropped("c0-", 5)])

    assert columns(tmp_path) == ["id", "note"]


def test_rows_of_an_old_version_add_the_column_again(tmp_path: Path) -> None:
    """Late: a row that still has the column, of a new shard, brings it back with its value."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [dropped("-80", 3), dropped("80-", 3)])

    take(query, [insert("80-c0", 4, {"id": 4, "gone": "late", "note": "w"})])

    assert values(tmp_path, "gone") == {1: (None,), 2: (None,), 4: ("late",)}


def test_a_table_with_a_history_keeps_its_columns(tmp_path: Path) -> None:
    """History: ended versions have values of the column, so it stays, and is NULL from then on."""
    query = dropping_query(tmp_path, history=True)
    take(query, FIRST)
    take(query, [dropped("-80", 3), dropped("80-", 3)])
    before: Row = {"id": 1, "note": "x"}
    after: Row = {"id": 1, "note": "w"}

    take(query, [change("-80", 4, 400, before, after, ids=(b"\x10", b"\x10"), shape=NEW)])

    assert values(tmp_path, "gone", "note") == {1: (None, "w"), 2: ("b", "y")}
    history = DeltaTable(str(tmp_path / "_shardstream_history" / "shop" / "orders")).scan()
    found = {(row["id"], row["gone"], row["note"]) for row in pa.table(history).to_pylist()}
    assert found == {(1, "a", "x"), (1, None, "w"), (2, "b", "y")}


def test_a_time_before_the_drop_has_the_column(tmp_path: Path) -> None:
    """As of: a frontier from before the drop is read with the column, and one after without it."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    before_us = query.position.frontier_us
    take(query, [dropped("-80", 3), dropped("80-", 3)])
    take(query, [])

    first = table_as_of(str(tmp_path), "shop.orders", before_us).rows
    last = table_as_of(str(tmp_path), "shop.orders", query.position.frontier_us).rows

    assert (first.column_names, last.column_names) == (["id", "gone", "note"], ["id", "note"])


@pytest.mark.parametrize(("rewrites", "is_restarted"), [(0, True), (0, False), (1, True)])
def test_a_driver_that_dies_before_the_drop_is_followed_by_one_that_drops(
    tmp_path: Path, rewrites: int, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    """Killed after the frontier, or between two tables: the next start drops, or the next batch."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    left = iter(range(rewrites))

    def rewrite_or_die(url: str, *arguments: object, **named: object) -> None:
        if next(left, None) is None:
            raise Died
        rewrite(url, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(batch_commit, "rewrite", rewrite_or_die)
        with pytest.raises(Died):
            take(query, [dropped("-80", 3), dropped("80-", 3)])
    newest = Frontiers(str(tmp_path), {}).newest()
    assert newest is not None
    query.position, query.batch_id = newest.position, newest.batch_id + 1

    if is_restarted:
        assert drop_columns(query.target, newest).is_rewritten
        query.run(query.source.rows([AGAIN]))
        assert values(tmp_path, "gone") == {1: (None,), 2: (None,), 3: (7,)}
    else:
        rows = query.source.rows([insert("-80", 4, {"id": 3, "note": "z"}, NEW)])
        with pytest.raises(Retry, match="a column was dropped, and the batch is run again"):
            query.run(rows)
        query.run(rows)
        assert columns(tmp_path) == ["id", "note"]


def test_a_column_that_came_again_is_not_dropped_when_its_batch_is_run_again(
    tmp_path: Path,
) -> None:
    """Killed after a table's commit: the frontier from before tells of an earlier column."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    take(query, [dropped("-80", 3), dropped("80-", 3)])
    rows = query.source.rows([AGAIN])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_commit, "lacking_after", _die)
        with pytest.raises(Died):
            query.run(rows)

    query.run_until_done(rows)

    assert values(tmp_path, "gone") == {1: (None,), 2: (None,), 3: (7,)}
    take(query, [dropped("-80", 5)])
    assert "gone" in columns(tmp_path), "80- has not told that it lacks the new column"


def _die(*_: object) -> None:
    raise Died


def test_a_table_that_is_left_out_keeps_its_columns(tmp_path: Path) -> None:
    """--table names others: statements reach the query, and concern the tables it follows."""
    query = dropping_query(tmp_path)
    take(query, FIRST)
    query.choose(tables=("shop.items",))

    take(query, [dropped("-80", 3), dropped("80-", 3)])

    assert "gone" in columns(tmp_path)


def test_the_option_is_true_or_false() -> None:
    """A misspelled option must not silently mean the default."""
    options = {"path": "t", "checkpointLocation": "c", "kafka.bootstrap.servers": "localhost:1"}

    assert not parse_options(options).target.options.drop_columns
    assert parse_options({**options, "dropColumns": "true"}).target.options.drop_columns
    with pytest.raises(UsageError, match="dropColumns is 'yes': true or false"):
        parse_options({**options, "dropColumns": "yes"})
