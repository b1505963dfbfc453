"""A change log is replayed into the tables that it describes."""

from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from event_token.errors import UsageError
from spark_consumers.change_log.check import check_changelog
from spark_consumers.change_log.delta_commit import ensure_table
from spark_consumers.change_log.replay import replay_changelog
from spark_consumers.change_log.state import state_as_of
from spark_consumers.errors import CannotApply
from tests.spark_consumers.applying.histories import History
from tests.spark_consumers.change_log.log_rows import SCHEMA, change, commit_rows

ORDERS = ("shop", "orders")
NOTES = ("shop", "notes")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """The folder for a table."""
    return str(tmp_path / "log")


def write_history(target: str) -> None:
    """Insert, update, delete, change a key, and write to a table without a key."""
    note = {"table": "notes"}
    commit_rows(
        target,
        [
            change(1, key="[1]", after='{"id":1,"n":1}'),
            change(2, key="[2]", after='{"id":2,"n":1}'),
            change(3, **note, after='{"t":"a"}'),
            change(4, **note, after='{"t":"a"}'),
        ],
        0,
    )
    commit_rows(
        target,
        [
            change(5, key="[1]", before='{"id":1,"n":1}', after='{"id":1,"n":2}'),
            change(6, key="[3]", old_key="[1]", before='{"id":1,"n":2}', after='{"id":3,"n":2}'),
            change(7, key="[2]", before='{"id":2,"n":1}'),
            change(8, **note, before='{"t":"a"}'),
        ],
        1,
    )


def test_replay_gives_the_tables(target: str) -> None:
    """A replay gives the tables, at the end and as of a time."""
    write_history(target)

    now = replay_changelog(target)
    then = replay_changelog(target, until_us=60)

    assert now[ORDERS].rows() == [{"id": 3, "n": 2}]
    assert now[NOTES].rows() == [{"t": "a"}]
    assert sorted((key, version.row) for key, version in then[ORDERS].by_key().items()) == [
        ("[1]", '{"id":1,"n":2}'),
        ("[2]", '{"id":2,"n":1}'),
    ]
    assert len(then[NOTES].rows()) == 2


def test_check_counts_what_is_wrong(target: str) -> None:
    """Holes, repeats and rows out of order are counted; a complete log has none."""
    write_history(target)
    whole = check_changelog(target)
    commit_rows(target, [change(11), change(12, timestamp_us=0), change(12)], 2, contiguous=False)
    broken = check_changelog(target)

    assert (whole.changes, whole.lost, whole.repeated, whole.out_of_order) == (8, 0, 0, 0)
    assert (broken.changes, broken.lost, broken.repeated, broken.out_of_order) == (11, 2, 1, 1)


def test_a_missing_log_is_named(target: str) -> None:
    """A folder without a change log is a usage error."""
    with pytest.raises(UsageError, match="no change log was written there"):
        replay_changelog(target)


def test_a_log_of_an_earlier_release_goes_on(target: str) -> None:
    """A table without keyspace ids gets their columns, and its old rows stay readable."""
    old = SCHEMA
    for name in ("keyspace_id_before", "keyspace_id_after"):
        old = old.remove(old.get_field_index(name))
    commit_rows(target, [change(1, key="[1]", after="{}")], 0, schema=old)

    ensure_table(target, SCHEMA, {})
    commit_rows(
        target,
        [change(2, key="[1]", after='{"n":2}', keyspace_id_before=b"x", keyspace_id_after=b"x")],
        1,
    )

    assert replay_changelog(target)[ORDERS].rows() == [{"n": 2}]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_state_in_spark_equals_the_replay(spark: SparkSession, target: str, seed: int) -> None:
    """A12, A13, A14: after moves, splits and TRUNCATE Spark and a replay give the true rows."""
    history = History(Random(seed))
    history.run(200)
    rows = sorted(history.log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))
    commit_rows(target, rows, 0, contiguous=False)
    middle_us = rows[len(rows) // 2]["timestamp_us"]
    assert isinstance(middle_us, int)
    frame = spark.read.parquet(*DeltaTable(target).file_uris())

    for until_us in (middle_us, history.now_us + 1_000):
        found = state_as_of(frame, until_us).collect()
        expected = replay_changelog(target, until_us=until_us)[ORDERS].by_key()
        assert len(found) == len(expected) > 0
        assert {(r.key_text, r.row, r.shard, r.seq) for r in found} == {
            (key, v.row, v.shard, v.seq) for key, v in expected.items()
        }
    assert {row.row for row in found} <= set(history.rows.values())
    assert len(found) == len({key for key, _ in history.rows})


def test_what_cannot_be_applied_stops_the_replay_and_spark(
    spark: SparkSession, target: str
) -> None:
    """A14: a renamed table stops both by name; without the rename both go on."""
    rename = change(2, type="DDL", table="", statement="RENAME TABLE orders TO old")
    commit_rows(target, [change(1, key="[1]", after="{}"), rename], 0)
    frame = spark.read.parquet(*DeltaTable(target).file_uris())

    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 2: RENAME TABLE"):
        replay_changelog(target)
    with pytest.raises(PythonException, match=r"CannotApply: shop\.orders, shard -80, seq 2"):
        state_as_of(frame, 1_000).collect()
    assert len(replay_changelog(target, until_us=20)[ORDERS].rows()) == 1
    assert len(state_as_of(frame, 20).collect()) == 1


def test_a_skip_stops_the_replay_and_spark_until_it_is_accepted(
    spark: SparkSession, target: str
) -> None:
    """B3: after a skipped transaction rows may be missing: only an operator knows that none are."""
    reason = '{"kind":"transaction","gtids":"u:7","reason":"by hand"}'
    skip = change(2, type="SKIP", database="", table="", gtid="u:7", statement=reason)
    commit_rows(target, [change(1, key="[1]", after="{}"), skip], 0)
    frame = spark.read.parquet(*DeltaTable(target).file_uris())

    with pytest.raises(CannotApply, match=r"-80, seq 2: an operator skipped u:7.*by hand"):
        replay_changelog(target)
    with pytest.raises(CannotApply, match=r"accept_skip=\['u:7'\]"):
        state_as_of(frame, 1_000)
    assert len(replay_changelog(target, accept_skip=["u:7"])[ORDERS].rows()) == 1
    assert len(replay_changelog(target, accept_skip=["reason:by hand"])[ORDERS].rows()) == 1
    assert len(state_as_of(frame, 1_000, accept_skip=["u:7"]).collect()) == 1
    assert len(replay_changelog(target, until_us=20)[ORDERS].rows()) == 1
