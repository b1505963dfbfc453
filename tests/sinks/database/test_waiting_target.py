"""How long a comparison waits for its target, and that it sees the target at one moment."""

from typing import Any, cast

import pytest
from sqlalchemy import Connection

from event_token import Flavor, GtidSet, parse_gtid_set
from event_token.errors import Retry
from event_token.position import ShardPosition, StreamPosition
from sinks.database import compared_table, dialect, verification
from sinks.database.compared_table import ShardSource, StagedPart
from sinks.database.staging import stage
from sinks.database.verification import ComparedTarget, VerifyTarget
from sinks.resume import PlannedBatch
from tests.sinks.database.followed import (
    ON_MYSQL_TOO,
    QUERY,
    Followed,
    Item,
    changes,
)

SLEEP = f"{verification.__name__}.time.sleep"
NAME = ("shop", "items")
LEFT, RIGHT = b"\x10", b"\x90"
FAR = 5
NOTHING = parse_gtid_set("", Flavor.MYSQL)


class Logged:
    """A shard whose log holds what a snapshot shows."""

    shard = "-80"

    def logged_seq(self, executed: GtidSet, wait_s: float) -> int:
        """The last seq of the log."""
        assert (executed, wait_s) == (NOTHING, 0.0)
        return FAR


def session_of(followed: Followed) -> ComparedTarget:
    """A comparison that takes a target for stopped at the second look that shows nothing new."""
    return ComparedTarget(VerifyTarget(followed.url, followed.options.follower, wait_s=0.0))


def place(seq: int) -> StreamPosition:
    """A position after one change of a shard."""
    return StreamPosition(0, 1_000 + seq, {"-80": ShardPosition(seq, seq, None)})


def test_a_target_is_waited_for_as_long_as_it_moves(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is far behind is waited for, one that stands still is named with its place."""
    logged = cast("ShardSource", Logged())
    session = session_of(followed)
    applied = [0]

    def apply_next(_s: float) -> None:
        seq = applied[-1] + 1
        planned = PlannedBatch(QUERY, seq - 1, place(seq - 1), place(seq))
        followed.database.apply_arrow(planned, [changes([Item(1, seq, 1_000 + seq)])])
        applied.append(seq)

    apply_next(0)
    with monkeypatch.context() as patch:
        patch.setattr(SLEEP, lambda _s: None)
        with pytest.raises(Retry, match=f"still for 0 s at seq 1 of shard -80, before seq {FAR}"):
            session.wait_for({logged: NOTHING})
    with monkeypatch.context() as patch:
        patch.setattr(SLEEP, apply_next)
        session.wait_for({logged: NOTHING})

    assert applied[-1] == FAR


@ON_MYSQL_TOO
def test_a_row_that_changes_its_place_meanwhile_is_not_missing(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden row becomes visible between two statements of a comparison, which still finds it."""
    hidden = Item(1, 1, 100, home=LEFT, note="left")
    followed.apply([hidden, Item(1, 2, 200, shard="80-", home=RIGHT, note="right")])
    session = session_of(followed)
    table = session.compared(NAME, session.chosen([NAME])[NAME])
    real = dialect.rows_of
    moved: list[str] = []

    def rows_of(*arguments: Any) -> list[Any]:
        found = real(*arguments)
        if not moved:
            moved.append("the visible row is deleted")
            followed.apply([Item(1, 12, 1100, shard="80-", home=RIGHT, deleted=True)])
        return found

    with session.transaction() as connection:
        part = staged(followed, connection)
        monkeypatch.setattr(f"{compared_table.__name__}.rows_of", rows_of)
        [pair] = table.pairs(connection, part)
        table.drop(connection, part)

    assert moved
    assert (pair.home, pair.is_there, pair.differing) == (LEFT, True, ())
    followed.check()


def staged(followed: Followed, connection: Connection) -> StagedPart:
    """The row of the left shard as a comparison stages it."""
    own_dialect = followed.database._dialect
    own = changes([Item(1, 1, 100, home=LEFT, note="left")])
    found = stage(connection, own_dialect, own, "verify_")
    assert found.stage is not None
    columns = {each.name: each for each in own.shape.columns if each.name in {"note", "amount"}}
    return StagedPart(found.stage, own_dialect.internal(found.stage), found.rows, columns)
