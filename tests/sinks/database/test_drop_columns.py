"""`--drop-columns`: a column leaves the target once no live shard has it."""

from collections.abc import Iterator, Sequence

import pytest
from sqlalchemy import Connection

from event_token.errors import Retry
from event_token.position import ShardPosition, StreamPosition
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.resume import PlannedBatch
from sinks.rule.policy import RowPolicy
from sinks.rule.task_changes import FollowedTables
from tests.sinks.database.followed import (
    EVERYWHERE,
    ON_MARIADB_TOO,
    QUERY,
    Followed,
    TargetServer,
)
from tests.sinks.rule.batches import Source
from tests.sinks.rule.dropped_columns import (
    ADD,
    AS_NUMBER,
    FIRST,
    NEW,
    dropped,
    insert,
)
from topics.records.vevent import VEvent

SHARDS = ("-80", "80-")
PARTITIONS = 2


class Died(Exception):  # noqa: N818 - what happened to the driver
    """Raised where the driver is killed."""


class Dropping(Followed):
    """A second database that drops columns."""

    def __init__(self, server: TargetServer) -> None:
        super().__init__(server, drop_columns=True)
        self.source = Source()
        self.end = StreamPosition(0, 0)
        self.database.prepare()

    def take(self, events: Sequence[VEvent], shards: Sequence[str] = SHARDS) -> None:
        """Apply events as the next batch, after which the stream has some shards."""
        self.number += 1
        end = self.end_of(shards)
        planned = PlannedBatch(QUERY, self.number, self.end, end)
        for _ in range(2):
            changes = self.source.changes(
                events,
                FollowedTables(self.database.known(), RowPolicy(drop_columns=True)),
                partitions=PARTITIONS,
            )
            try:
                assert self.database.apply_arrow(planned, changes)
            except Retry:
                continue
            break
        self.end = end

    def die_in_drop(self, alters: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Drop the column on all shards; the driver is killed after some ALTERs of the target."""
        drop = self.database._dialect.drop_column
        left = iter(range(alters))

        def drop_or_die(connection: Connection, place: str, name: str) -> None:
            if next(left, None) is None:
                raise Died
            drop(connection, place, name)

        def dying(*_: object) -> None:
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(self.database._dialect, "drop_column", drop_or_die)
            patch.setattr(self.database._catalog, "set_shape", dying)
            with pytest.raises(Died):
                self.take([dropped("-80", 3), dropped("80-", 3)])
        self.end = self.end_of(SHARDS)

    def end_of(self, shards: Sequence[str]) -> StreamPosition:
        """The position after the next batch."""
        at = 10 * (self.number + 1)
        return StreamPosition(
            0, 1000 * at, {shard: ShardPosition(at, at, None) for shard in shards}
        )

    def columns(self) -> set[str]:
        """The columns of the table in the target that are the source's, also of hidden rows."""
        [known] = self.database.known().values()
        names = {column.name for column in known.shape.columns}
        for place in ("shop.orders", "_shardstream.homes_1"):
            listed = ", ".join(f'"{name}"' for name in names)
            self.rows(f"SELECT {listed} FROM {place}")
            if "gone" not in names:
                with pytest.raises(Exception, match="gone"):
                    self.rows(f"SELECT orders_.gone FROM {place} orders_")
        return names


@pytest.fixture
def dropping(target_server: TargetServer) -> Iterator[Dropping]:
    """A database in which nothing is yet."""
    found = Dropping(target_server)
    with found.database.claimed():
        yield found


@EVERYWHERE
def test_a_column_is_dropped_when_no_shard_has_it(dropping: Dropping) -> None:
    """DROP COLUMN: one shard is altered before the other; the second one drops the column."""
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3), insert("-80", 4, {"id": 3, "note": "z"}, NEW)])
    before = dropping.rows("SELECT id, gone FROM shop.orders ORDER BY id")
    assert (before, dropping.columns()) == ([(1, "a"), (2, "b"), (3, None)], {"id", "gone", "note"})

    dropping.take([dropped("80-", 5)])

    assert dropping.columns() == {"id", "note"}
    rows = dropping.rows("SELECT id, note FROM shop.orders ORDER BY id")
    assert rows == [(1, "x"), (2, "y"), (3, "z")]


def test_rows_alone_tell_that_a_column_is_gone(dropping: Dropping) -> None:
    """DROP COLUMN by gh-ost: no statement names the column; each shard's next row tells."""
    dropping.take(FIRST)
    dropping.take([insert("-80", 3, {"id": 3, "note": "z"}, NEW)])
    assert "gone" in dropping.columns()

    dropping.take([insert("80-", 4, {"id": 4, "note": "w"}, NEW)])

    assert dropping.columns() == {"id", "note"}


@ON_MARIADB_TOO
def test_a_column_of_the_same_name_begins_empty(dropping: Dropping) -> None:
    """DROP COLUMN, later ADD COLUMN of another type: the old values do not come back."""
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3), dropped("80-", 3)])

    dropping.take([insert("-80", 4, {"id": 3, "note": "z", "gone": 7}, AS_NUMBER)])

    rows = dropping.rows("SELECT id, gone FROM shop.orders ORDER BY id")
    assert rows == [(1, None), (2, None), (3, 7)]


@pytest.mark.parametrize(
    ("target_server", "together"),
    [("postgres", True), ("mariadb_a", False)],
    indirect=["target_server"],
)
def test_a_shard_adds_the_column_again_before_all_dropped_it(
    dropping: Dropping, *, together: bool
) -> None:
    """DROP and ADD on one shard: only its rows lose the values, those of the other keep them."""
    dropping.take(FIRST)
    rest = [
        insert("-80", 3, {"id": 3, "gone": "c", "note": "v"}),
        dropped("-80", 4),
        dropped("-80", 5, ADD),
        insert("-80", 6, {"id": 4, "gone": "new", "note": "z"}),
    ]

    for events in [rest] if together else ([event] for event in rest):
        dropping.take(events)

    rows = dropping.rows("SELECT id, gone FROM shop.orders ORDER BY id")
    assert rows == [(1, None), (2, "b"), (3, None), (4, "new")]


def test_a_shard_that_ended_does_not_count(dropping: Dropping) -> None:
    """Hop: 80- had the column to its end; those that follow it are asked, not 80- itself."""
    dropping.take(FIRST)
    after = ("-80", "80-c0", "c0-")
    dropping.take([dropped("-80", 3)], after)
    dropping.take([insert("80-c0", 4, {"id": 4, "note": "w"}, NEW)], after)
    assert "gone" in dropping.columns()

    dropping.take([dropped("c0-", 5)], after)

    assert dropping.columns() == {"id", "note"}


def test_rows_of_an_old_version_add_the_column_again(dropping: Dropping) -> None:
    """Late: a row that still has the column, of a new shard, brings it back with its value."""
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3), dropped("80-", 3)])

    dropping.take([insert("80-c0", 4, {"id": 4, "gone": "late", "note": "w"})], ("-80", "80-c0"))

    rows = dropping.rows("SELECT id, gone FROM shop.orders ORDER BY id")
    assert rows == [(1, None), (2, None), (4, "late")]
    dropping.take([dropped("80-c0", 5), dropped("-80", 5)], ("-80", "80-c0"))
    assert dropping.columns() == {"id", "note"}


def test_a_renamed_column_is_dropped_by_either_name(dropping: Dropping) -> None:
    """RENAME, then DROP COLUMN: the later shard drops it by the name that it still had there."""
    rename = "ALTER TABLE orders RENAME COLUMN gone TO lost"
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3, rename), dropped("-80", 4, "ALTER TABLE orders DROP lost")])
    assert "lost" in dropping.columns()

    dropping.take([dropped("80-", 5)])

    assert dropping.columns() == {"id", "note"}
    [known] = dropping.database.known().values()
    assert known.renames == {}


@pytest.mark.parametrize(
    ("target_server", "alters"),
    # Where DDL commits by itself each place counts.
    [("postgres", 1), ("mysql_a", 1), ("mariadb_a", 0), ("mariadb_a", 1), ("mariadb_a", 2)],
    indirect=["target_server"],
)
def test_a_driver_that_dies_before_the_drop_is_followed_by_one_that_drops(
    dropping: Dropping, alters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the batch's commit, between the ALTERs, or before the target knows of them."""
    dropping.take(FIRST)
    dropping.die_in_drop(alters, monkeypatch)

    dropping.take([insert("-80", 4, {"id": 3, "note": "z"}, NEW)])

    assert dropping.columns() == {"id", "note"}
    rows = dropping.rows("SELECT id, note FROM shop.orders ORDER BY id")
    assert rows == [(1, "x"), (2, "y"), (3, "z")]


@pytest.mark.parametrize(
    ("target_server", "alters"), [("mysql_a", 1), ("mariadb_a", 2)], indirect=["target_server"]
)
def test_a_start_without_the_option_ends_a_drop_that_was_begun(
    dropping: Dropping, alters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the ALTERs, or before the catalog knows of them, where DDL commits."""
    dropping.take(FIRST)
    dropping.die_in_drop(alters, monkeypatch)

    without = SqlDatabase(dropping.url, DatabaseOptions(dropping.options.follower))
    without.prepare()
    without.clean_up()
    dropping.number += 1
    planned = PlannedBatch(QUERY, dropping.number, dropping.end, dropping.end_of(SHARDS))
    changes = dropping.source.changes(
        [insert("-80", 4, {"id": 3, "note": "z"}, NEW)], FollowedTables(known=without.known())
    )
    assert without.apply_arrow(planned, changes)

    assert dropping.columns() == {"id", "note"}
    rows = dropping.rows("SELECT id, note FROM shop.orders ORDER BY id")
    assert rows == [(1, "x"), (2, "y"), (3, "z")]


def test_what_shards_lack_is_forgotten_without_the_option(dropping: Dropping) -> None:
    """A run without the option does not see that a shard has the column again."""
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3)])

    without = SqlDatabase(dropping.url, DatabaseOptions(dropping.options.follower))
    without.prepare()
    begin, dropping.number, dropping.end = (
        dropping.end,
        dropping.number + 1,
        dropping.end_of(SHARDS),
    )
    assert without.apply_arrow(PlannedBatch(QUERY, dropping.number, begin, dropping.end), [])
    dropping.take([dropped("80-", 4)])

    assert "gone" in dropping.columns()
    dropping.take([dropped("-80", 5)])
    assert dropping.columns() == {"id", "note"}


def test_a_second_query_without_the_option_forgets_nothing(dropping: Dropping) -> None:
    """One that is refused, because the first runs, leaves alone what shards lack."""
    dropping.take(FIRST)
    dropping.take([dropped("-80", 3)])

    SqlDatabase(dropping.url, DatabaseOptions(dropping.options.follower)).prepare()
    dropping.take([dropped("80-", 4)])

    assert dropping.columns() == {"id", "note"}


def test_without_the_option_the_column_stays(followed: Followed) -> None:
    """DROP COLUMN without the option: NULL from then on, and the column stays."""
    source, end = Source(), StreamPosition(0, 0)
    steps = [FIRST, [dropped("-80", 3), dropped("80-", 3)]]
    steps.append([insert("-80", 4, {"id": 1, "note": "z"}, NEW)])

    for number, events in enumerate(steps):
        begin, at = end, 10 * (number + 1)
        end = StreamPosition(0, at, {shard: ShardPosition(at, at, None) for shard in SHARDS})
        changes = source.changes(events, FollowedTables(known=followed.database.known()))
        assert followed.database.apply_arrow(PlannedBatch(QUERY, number, begin, end), changes)

    rows = followed.rows("SELECT id, gone FROM shop.orders ORDER BY id")
    assert rows == [(1, None), (2, "b")]
