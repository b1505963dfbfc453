"""Rows that wait aside on a real target, and what becomes of them there."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from databases.internal_tables import CHECKPOINT, create_internal_tables
from event_token import ShardPosition, StreamPosition
from resharding import aside
from resharding.apply import merge_session
from resharding.apply.last_changes import LastChanges
from resharding.apply.merge_session import MergeSession
from resharding.apply.statements import StatementBuilder
from resharding.aside import in_the_way, read_aside, was_set_aside_since
from resharding.bookkeeping import VerifyResult
from resharding.errors import DoesNotApply
from resharding.routing import Delete, Upsert
from resharding.servers import open_session
from tests.database_servers import DatabaseFixture
from tests.resharding.accounts import resharder_of
from tests.resharding.apply.records import event
from tests.resharding.shards import fresh_schema
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Op, Row

A, B = "-80", "80-"
DEFINITION = (
    "id INT, owner VARCHAR(9) CHARACTER SET latin1 NOT NULL, code INT UNIQUE, label ENUM('x'), "
    "PRIMARY KEY (id)"
)
COLUMNS = (
    Column("id", ValueKind.INT, "int"),
    Column("owner", ValueKind.STRING, "varchar(9)"),
    Column("code", ValueKind.INT, "int"),
    Column("label", ValueKind.ENUM, "enum('x')", labels=("x",)),
)


class Target:
    """A table on a server, changed by the records of two sources."""

    def __init__(self, database: DatabaseFixture) -> None:
        self.schema = fresh_schema()
        self.reshard_id = f"r-{self.schema}"
        self.server = resharder_of(database, "-")
        self.connection = database.connect()
        self.ask(f"CREATE DATABASE {self.schema}")
        self.ask(f"CREATE TABLE {self.schema}.w ({DEFINITION})")
        self.shape = TableShape(self.schema, "w", COLUMNS, (0,))
        self.seq = 0
        create_internal_tables(self.connection, (CHECKPOINT,))
        self.session = MergeSession(self.server, self.reshard_id)
        self.session.checkpoints(self.reshard_id)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The answer of the server."""
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def position(self) -> StreamPosition:
        """Where the sources are."""
        return StreamPosition(0, 0, {A: ShardPosition(self.seq, self.seq, None)})

    def apply(self, source: str, *changes: tuple[Row | None, Row | None]) -> None:
        """Apply changes of a source as one transaction."""
        last = LastChanges(lambda _event: "owner", is_merge=True)
        builder = StatementBuilder(
            lambda schema, table: self.session.table(schema, table, "owner"),
            packet_bytes_max=self.session.packet_bytes_max,
            is_merge=True,
        )
        for before, after in changes:
            self.seq += 1
            names: dict[str, Any] = {"database": self.schema, "table": "w", "shape": self.shape}
            op = Op.UPDATE if before and after else Op.INSERT if after else Op.DELETE
            record = event(op, before, after, shard=source, seq=self.seq, **names)
            row = after or before
            assert row is not None
            kind = Upsert if after else Delete
            last.add(kind(self.schema, "w", row), record)
        for section in last.take():
            for change, record in section.changes:
                builder.add(change, record)
        self.session.run(builder.take())
        self.session.settle(self.position())
        self.session.commit()

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the table."""
        return self.ask(f"SELECT id, owner, code, label + 0 FROM {self.schema}.w ORDER BY id")


@pytest.fixture
def target(database: DatabaseFixture) -> Iterator[Target]:
    """A target of either family."""
    made = Target(database)
    yield made
    made.session.close()


def row_of(key: int, owner: str, code: int, label: str | None = "x") -> Row:
    """A row."""
    return {"id": key, "owner": owner, "code": code, "label": label}


def test_a_row_waits_until_nothing_excludes_it(target: Target) -> None:
    """It is named with what is in its way, survives its session, and comes back as it was.

    The ENUM's error value, too, which strict mode takes from nobody.
    """
    ours, theirs = row_of(1, "a", 7), row_of(2, "b", 7, "")
    target.apply(A, (None, ours))
    target.apply(B, (None, theirs))

    with closing(open_session(target.server)) as connection:
        [waiting] = read_aside(connection, target.reshard_id)
        [said] = in_the_way(connection, [waiting])
    assert f"{target.schema}.w, id=2, of shard {B}" in said
    assert target.rows() == [(1, "a", 7, 1)]
    target.session.close()
    target.session = MergeSession(target.server, target.reshard_id)
    target.session.checkpoints(target.reshard_id)
    assert target.session.aside_rows == 1
    target.apply(A, (ours, row_of(1, "a", 8)))

    assert target.rows() == [(1, "a", 8, 1), (2, "b", 7, 0)]
    assert target.session.aside_rows == 0


def test_equal_values_of_two_sources(target: Target) -> None:
    """A row is deleted by its source's very sharding value, whatever the collation takes for it.

    And a statement of many rows sets aside no other than those that are excluded.
    """
    ours, theirs = row_of(1, "a", 1), row_of(1, "A", 2)
    target.apply(A, (None, ours))
    target.apply(B, *((None, row_of(n, "A", n * 10)) for n in range(5)), (None, theirs))
    target.apply(B, (theirs, None))

    assert target.rows() == [
        (0, "A", 0, 1),
        (1, "a", 1, 1),
        *((n, "A", n * 10, 1) for n in range(2, 5)),
    ]
    assert target.session.aside_rows == 0


def test_many_rows_wait(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read in pages, and only those come back that nothing excludes any more."""
    monkeypatch.setattr(aside, "PAGE_ROWS", 2)
    target.apply(A, *((None, row_of(n, "a", n)) for n in range(5)))
    target.apply(B, *((None, row_of(10 + n, "b", n)) for n in range(5)))
    target.apply(A, *((row_of(n, "a", n), None) for n in (1, 3, 4)))

    assert [row[0] for row in target.rows()] == [0, 2, 11, 13, 14]
    with closing(open_session(target.server)) as connection:
        left = [row.key for row in aside.read_aside(connection, target.reshard_id)]
    assert sorted(left) == ["id=10", "id=12"]
    assert target.session.aside_rows == 2


def test_a_comparison_before_the_last_row_was_set_aside(target: Target) -> None:
    """It counts no more; one behind it does."""
    target.apply(A, (None, row_of(1, "a", 1)))
    before = VerifyResult(target.position().to_string(), 1, 0)
    with closing(open_session(target.server)) as connection:
        assert not was_set_aside_since(connection, target.reshard_id, before)
        target.apply(B, (None, row_of(1, "b", 1)))
        behind = VerifyResult(target.position().to_string(), 1, 0)

        assert was_set_aside_since(connection, target.reshard_id, before)
        assert not was_set_aside_since(connection, target.reshard_id, behind)


def test_sources_that_hold_the_same_keys(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The applier stops by name where more rows wait than travel."""
    monkeypatch.setattr(merge_session, "ASIDE_ROWS_MAX", 3)
    target.apply(A, *((None, row_of(n, "a", n)) for n in range(9)))

    with pytest.raises(DoesNotApply, match="several sources hold the same keys or unique values"):
        target.apply(B, *((None, row_of(n, "b", n)) for n in range(9)))


def test_a_row_that_no_longer_fits(target: Target) -> None:
    """A row that was set aside under another definition of its table stops the applier by name."""
    ours = row_of(1, "a", 7)
    target.apply(A, (None, ours))
    target.apply(B, (None, row_of(2, "b", 7)))
    target.ask(f"ALTER TABLE {target.schema}.w DROP COLUMN label")

    target.shape = TableShape(target.schema, "w", COLUMNS[:-1], (0,))
    del ours["label"]
    with pytest.raises(DoesNotApply, match=r"set aside in _shardstream\.aside .*, id=2, of"):
        target.apply(A, (ours, None))
