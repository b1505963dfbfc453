import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError

from event_token import ShardPosition, StreamPosition
from event_token.errors import Halt, UsageError
from sinks.errors import ChangeLogConflict, TargetConflict
from sinks.lake.change_log import delta_commit
from sinks.lake.change_log.delta_commit import (
    FORMAT,
    ROWS_MARK,
    LogBatch,
    SeqSpan,
    commit,
    ensure_table,
    file_stats,
    hopped_mark,
    is_replay,
    join_spans,
    partial_mark,
)
from sinks.lake.change_log.reading import check_changelog, open_changelog
from sinks.lake.delta.log import FORMAT_MARK, query_mark, shard_mark
from sinks.resume import Origin
from tests.sinks.lake.change_log.log_rows import SCHEMA, change, commit_rows, write_rows
from topics.arrow.key_scope import KeyScope


def rows_of(target: str) -> int:
    """The number of rows in the table."""
    return DeltaTable(target).count()


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The folder for a table."""
    return str(tmp_path / "log")


def test_replayed_batch_writes_nothing(target: str) -> None:
    """The same batch in other files leaves the table unchanged; the next batch is added."""
    batch = [change(1), change(2)]

    added = [
        commit_rows(target, batch, 0),
        commit_rows(target, batch, 0),
        commit_rows(target, [change(3)], 1),
        commit_rows(target, batch, 0),
    ]

    assert added == [True, False, True, False]
    table = DeltaTable(target)
    assert table.count() == 3
    assert table.transaction_version(shard_mark("-80")) == 3
    assert table.transaction_version(ROWS_MARK) == 3


def test_names_of_the_marks_are_stored() -> None:
    """Existing tables hold these names: with another one their last batch would be repeated."""
    assert query_mark("q") == "shardstream.query.q"
    assert shard_mark("-80") == "shardstream.seq.-80"
    assert hopped_mark("-80") == "shardstream.hopped.-80"
    assert partial_mark("-80") == "shardstream.partial.-80"
    assert ROWS_MARK == "shardstream.rows"
    assert FORMAT_MARK == "shardstream.format"


def test_format_of_another_release_is_refused(target: str) -> None:
    """A table of a newer format is neither continued nor read; one of before the mark is."""
    commit_rows(target, [change(1)], 0)
    table = open_changelog(target, {})
    assert table.transaction_version(FORMAT_MARK) == FORMAT == 1
    table.create_write_transaction(
        [],
        mode="append",
        schema=SCHEMA,
        commit_properties=CommitProperties(app_transactions=[Transaction(FORMAT_MARK, 2)]),
    )

    for use in (lambda: commit_rows(target, [change(2)], 1), lambda: open_changelog(target, {})):
        with pytest.raises(Halt, match="format 2 of the change log"):
            use()
    assert rows_of(target) == 1


def test_lost_checkpoint_cannot_repeat_changes(target: str) -> None:
    """F30: A query with a new id that begins before the table's end is refused, naming the seqs."""
    commit_rows(target, [change(1), change(2)], 5)

    with pytest.raises(ChangeLogConflict, match="up to seq 2, but this query begins at seq 2"):
        commit_rows(target, [change(2), change(3)], 0, query="another")
    assert rows_of(target) == 2


@pytest.mark.parametrize("end", [None, StreamPosition(0, 70, {"-80": ShardPosition(2, 2, None)})])
def test_a_lost_checkpoint_is_told_the_way_on(target: str, end: StreamPosition | None) -> None:
    """The latest position in the table's commits is named; without any a new table is."""
    ensure_table(target, SCHEMA, {})
    for number, position in enumerate((end, None)):
        files, spans = write_rows(target, [change(number + 1)], {}, SCHEMA)
        batch = LogBatch(number, "q", spans, files, position, contiguous=True)
        assert commit(open_changelog(target, {}), SCHEMA, batch)

    way = "Write to a new table" if end is None else f"start from .--from. {end.to_string()}"
    with pytest.raises(ChangeLogConflict, match=way):
        commit_rows(target, [change(2)], 0, query="another")


def test_hole_stops_only_a_query_that_takes_everything(target: str) -> None:
    """A gap in a shard's seqs is an error unless the query filters rows."""
    commit_rows(target, [change(1)], 0)

    with pytest.raises(ChangeLogConflict, match="would leave changes out"):
        commit_rows(target, [change(3)], 1)
    with pytest.raises(ChangeLogConflict, match="has 2 rows of shard -80 for seq 2 to 4"):
        commit_rows(target, [change(2), change(4)], 1)
    assert commit_rows(target, [change(3)], 1, contiguous=False)


def test_holes_behind_a_hop_without_marks_are_no_loss(target: str) -> None:
    """Rows read before such a hop are left out without being lost; a repeat is still refused."""
    hopped = frozenset({"-80"})
    commit_rows(target, [change(2), change(5)], 0, hopped=hopped)
    commit_rows(target, [change(9)], 1, hopped=hopped)

    report = check_changelog(target)

    assert (report.changes, report.lost, report.repeated) == (3, 0, 0)
    with pytest.raises(ChangeLogConflict, match="up to seq 9, but this query begins at seq 8"):
        commit_rows(target, [change(8), change(10)], 2, hopped=hopped)


def test_checkpoint_put_back_by_hand_is_noticed() -> None:
    """A known batch id with unknown rows is neither a replay nor a new batch."""
    batch = LogBatch(1, "q", {"-80": SeqSpan(5, 9, 5)}, [], None, contiguous=True)

    with pytest.raises(ChangeLogConflict, match="reset or restored"):
        is_replay(batch, 1, {"-80": 7})


def test_two_writers_at_once_cannot_both_commit(target: str) -> None:
    """F29: If two drivers commit the same batch, the slower one is refused."""
    commit_rows(target, [change(1)], 0)
    stale = DeltaTable(target)
    commit_rows(target, [change(2)], 1)

    files, spans = write_rows(target, [change(2)], {}, SCHEMA)
    batch = LogBatch(1, "q", spans, files, None, contiguous=True)
    with pytest.raises(ChangeLogConflict, match="another query wrote"):
        commit(stale, SCHEMA, batch)
    assert rows_of(target) == 2


def test_files_are_in_merged_order(target: str) -> None:
    """A task with rows of several shards writes them by time, shard and offset."""
    rows = [change(1, timestamp_us=50), change(2, timestamp_us=60)]
    rows += [change(1, shard="80-", timestamp_us=40), change(2, shard="80-", timestamp_us=50)]
    commit_rows(target, rows, 0)

    found = DeltaTable(target).to_pyarrow_table().to_pylist()

    assert [(r["timestamp_us"], r["shard"]) for r in found] == [
        (40, "80-"),
        (50, "-80"),
        (50, "80-"),
        (60, "-80"),
    ]


def test_table_of_other_columns_is_refused(target: str) -> None:
    """A table with other columns than the query's is refused."""
    ensure_table(target, SCHEMA, {})
    ensure_table(target, SCHEMA, {})

    with pytest.raises(UsageError, match=r"differ in columns \(late\)"):
        ensure_table(target, SCHEMA.append(pa.field("late", pa.bool_())), {})


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_batch_that_repeats_the_last_seq_is_refused(target: str, contiguous: bool) -> None:
    """D2: also a query that filters cannot commit the last seq of a shard again."""
    commit_rows(target, [change(1), change(2)], 0)

    with pytest.raises(ChangeLogConflict, match="would repeat changes"):
        commit_rows(target, [change(2)], 1, contiguous=contiguous)
    assert rows_of(target) == 2


def test_a_replay_whose_last_seq_is_there_is_a_replay() -> None:
    """D2: the mark of a shard may be at the batch's last seq or beyond it, never before."""
    batch = LogBatch(4, "q", {"-80": SeqSpan(5, 9, 5)}, [], None, contiguous=True)

    assert is_replay(batch, 4, {"-80": 9})
    assert is_replay(batch, 5, {"-80": 12})
    with pytest.raises(ChangeLogConflict, match="only up to seq None of 9"):
        is_replay(batch, 4, {"-80": None})


def test_commits_are_changes_of_data(target: str) -> None:
    """D2: streaming readers of the table skip files that were not added as changes of data."""
    commit_rows(target, [change(1)], 0)

    newest = max(Path(target, "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]

    assert [action["add"]["dataChange"] for action in actions if "add" in action] == [True]


def test_spans_of_several_tasks_are_joined() -> None:
    """D2: a shard's span reaches from the first to the last seq of all tasks, in any order."""
    tasks = [
        {"-80": SeqSpan(4, 6, 3)},
        {"-80": SeqSpan(1, 3, 3), "80-": SeqSpan(2, 2, 1)},
        {"-80": SeqSpan(7, 9, 2)},
    ]

    assert join_spans(tasks) == {"-80": SeqSpan(1, 9, 8), "80-": SeqSpan(2, 2, 1)}
    assert join_spans(reversed(tasks)) == join_spans(tasks)


def test_other_errors_of_delta_are_no_conflict(target: str) -> None:
    """D2: a commit that fails for another reason than a concurrent one raises Delta's error."""
    commit_rows(target, [change(1)], 0)
    table = DeltaTable(target)
    files, spans = write_rows(target, [change(2)], {}, SCHEMA)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 99}}
    Path(target, "_delta_log", f"{table.version() + 1:020}.json").write_text(json.dumps(protocol))

    with pytest.raises(DeltaError) as raised:
        commit(table, SCHEMA, LogBatch(1, "q", spans, files, None, contiguous=True))
    assert not isinstance(raised.value, ChangeLogConflict)


def test_a_commit_tells_where_the_stream_stands(target: str) -> None:
    """Frontier and position are in the commit, and marks of shards only with their first rows."""
    end = StreamPosition(
        0, 70, {"-80": ShardPosition(2, 1, None), "80-": ShardPosition(0, 0, None)}
    )
    both = frozenset({"-80", "80-"})
    ensure_table(target, SCHEMA, {})
    files, spans = write_rows(target, [change(1)], {}, SCHEMA)
    batch = LogBatch(3, "q", spans, files, end, contiguous=True, hopped=both, partial=both)

    assert commit(open_changelog(target, {}), SCHEMA, batch)

    table = DeltaTable(target)
    [last] = table.history(1)
    assert last["shardstream.batch_id"] == "3"
    assert last["shardstream.frontier_us"] == "70"
    assert last["shardstream.position"] == end.to_string()
    for mark in (hopped_mark, partial_mark):
        assert table.transaction_version(mark("-80")) == 1
        assert table.transaction_version(mark("80-")) is None


def test_the_end_is_found_behind_the_commits_of_others(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commits tell it; all are read only where others have made these."""
    monkeypatch.setattr(delta_commit, "LOOKED_AT_FIRST", 2)
    end = StreamPosition(0, 70, {"-80": ShardPosition(2, 1, None)})
    commit_rows(target, [change(1)], 0, end=end)
    found = []
    for _ in range(3):
        found.append(delta_commit.end_position(DeltaTable(target)))
        DeltaTable(target).alter.set_table_description("by somebody else")

    assert found == [end.to_string()] * 3


def test_a_log_keeps_its_keyspace_key_range_and_key_scope(target: str) -> None:
    """A query of another stream is refused by what differs; one that names none goes on."""
    own = Origin("commerce", "-80")
    ensure_table(target, SCHEMA, {}, own)

    for other, message in (
        (replace(own, keyspace="users"), "begun with keyspace commerce, and this query has users"),
        (replace(own, key_range="-"), "begun with --key-range -80, and this query has -:"),
        (replace(own, key_scope=KeyScope.SHARD), "--key-scope keyspace, and this .* shard"),
    ):
        with pytest.raises(TargetConflict, match=message):
            ensure_table(target, SCHEMA, {}, other)
    ensure_table(target, SCHEMA, {}, own)
    ensure_table(target, SCHEMA, {})


def test_readers_may_skip_a_file_by_its_statistics() -> None:
    """Delta's readers are told the rows, the bounds, and that no value of these columns is NULL."""
    assert json.loads(file_stats(3, {"seq": (1, 3), "shard": ("-80", "80-")})) == {
        "numRecords": 3,
        "minValues": {"seq": 1, "shard": "-80"},
        "maxValues": {"seq": 3, "shard": "80-"},
        "nullCount": {"seq": 0, "shard": 0},
    }
