"""A change log is replayed into the tables that it describes."""

from pathlib import Path
from random import Random

import pytest

from event_token.errors import UsageError
from sinks.lake.change_log.reading import check_changelog, replay_changelog
from tests.sinks.lake.change_log.log_rows import change, commit_rows
from tests.sinks.rule.histories import History, applied
from topics.errors import CannotApply

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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_gives_the_true_rows(target: str, seed: int) -> None:
    """A12, A13, A14: after moves, splits and TRUNCATE, also as of an earlier time."""
    history = History(Random(seed))
    history.run(200)
    rows = sorted(history.log, key=lambda r: (r["timestamp_us"], r["shard"], r["seq"]))
    commit_rows(target, rows, 0, contiguous=False)
    middle_us = rows[len(rows) // 2]["timestamp_us"]
    assert isinstance(middle_us, int)

    then = replay_changelog(target, until_us=middle_us)[ORDERS].by_key()
    now = replay_changelog(target, until_us=history.now_us + 1_000)[ORDERS].by_key()

    earlier = [row for row in rows if int(str(row["timestamp_us"])) < middle_us]
    assert then == applied(earlier).by_key()
    assert {version.row for version in now.values()} <= set(history.rows.values())
    assert len(now) == len({key for key, _ in history.rows})


def test_what_cannot_be_applied_stops_the_replay(target: str) -> None:
    """A14: a renamed table stops it by name; without the rename it goes on."""
    rename = change(2, type="DDL", table="", statement="RENAME TABLE orders TO old")
    commit_rows(target, [change(1, key="[1]", after="{}"), rename], 0)

    with pytest.raises(CannotApply, match=r"shop\.orders, shard -80, seq 2: RENAME TABLE"):
        replay_changelog(target)
    assert len(replay_changelog(target, until_us=20)[ORDERS].rows()) == 1


def test_a_skip_stops_the_replay_until_it_is_accepted(target: str) -> None:
    """B3: after a skipped transaction rows may be missing: only an operator knows that none are."""
    reason = '{"kind":"transaction","gtids":"u:7","reason":"by hand"}'
    skip = change(2, type="SKIP", database="", table="", gtid="u:7", statement=reason)
    commit_rows(target, [change(1, key="[1]", after="{}"), skip], 0)

    with pytest.raises(CannotApply, match=r"-80, seq 2: an operator skipped u:7.*by hand"):
        replay_changelog(target)
    assert len(replay_changelog(target, accept_skip=["u:7"])[ORDERS].rows()) == 1
    assert len(replay_changelog(target, accept_skip=["reason:by hand"])[ORDERS].rows()) == 1
    assert len(replay_changelog(target, until_us=20)[ORDERS].rows()) == 1
