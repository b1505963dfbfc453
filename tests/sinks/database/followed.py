"""Batches of hand-made changes for a second database, and what it holds afterwards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pytest
from sqlalchemy.engine.interfaces import DBAPICursor

from event_token.position import ShardPosition, StreamPosition
from sinks.database.database import SqlDatabase
from sinks.database.options import DatabaseOptions
from sinks.resume import PlannedBatch
from sinks.rule.homes import META, Settled, Version, settle
from sinks.rule.task_changes import TableChanges
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.mysql_targets import MysqlTargets
from topics.arrow.output_columns import arrow_type
from topics.records.table_shape import Column, TableShape, ValueKind

ITEMS = TableShape(
    "shop",
    "items",
    (
        Column("id", ValueKind.LONG, "bigint"),
        Column("part", ValueKind.STRING, "varchar(20)"),
        Column("note", ValueKind.STRING, "varchar(40)"),
        Column("amount", ValueKind.INT, "int"),
    ),
    (0, 1),
)
QUERY = "query-1"
TargetServer: TypeAlias = PostgresFixture | MysqlTargets
# Marks of tests that other servers than PostgreSQL run as well. The session's MySQL server does not
# allow LOAD DATA LOCAL, as is MySQL's default; MariaDB's default is to allow it.
EVERYWHERE = pytest.mark.parametrize(
    "target_server", ["postgres", "mysql_a", "mariadb_a"], indirect=True
)
ON_MARIADB_TOO = pytest.mark.parametrize("target_server", ["postgres", "mariadb_a"], indirect=True)
ON_MYSQL_TOO = pytest.mark.parametrize("target_server", ["postgres", "mysql_a"], indirect=True)


@dataclass(frozen=True)
class Item:
    """A change of one row: an upsert, or a tombstone if `deleted`."""

    key: int
    seq: int
    time: int
    shard: str = "-80"
    home: bytes | None = b"\x10"
    deleted: bool = False
    note: str | None = None
    amount: int | None = None
    compare: bool = False
    token: str | None = None
    absent: tuple[str, ...] | None = None
    more: Mapping[str, object] = field(default_factory=dict)

    @property
    def key_text(self) -> str:
        """The key as JSON."""
        return f'{{"id":{self.key},"part":"p:%s☃"}}'

    @property
    def meta(self) -> dict[str, Any]:
        """The columns of META."""
        return {
            "_key": self.key_text,
            "_home": self.home,
            "_shard": self.shard,
            "_seq": self.seq,
            "_time_us": self.time,
            "_deleted": self.deleted,
            "_token": self.token,
            "_compare": self.compare,
            "_absent": self.absent,
        }

    def row(self, shape: TableShape) -> dict[str, Any]:
        """All columns."""
        found = {column.name: None for column in shape.columns}
        key = {"id": self.key, "part": "p:%s☃"}
        rest = {} if self.deleted else {"note": self.note, "amount": self.amount, **self.more}
        return {**self.meta, **found, **key, **{n: v for n, v in rest.items() if n in found}}

    def version(self) -> Version:
        """What it leaves, with its values as row."""
        row = None if self.deleted else (self.note, self.amount)
        return Version(self.shard, self.seq, self.time, self.home, row, self.token)


def changes(
    items: Iterable[Item], shape: TableShape = ITEMS, removals: Sequence[Version] = (), **more: Any
) -> TableChanges:
    """The changes of one table as a task has them."""
    schema = pa.schema([*META, *(pa.field(c.name, arrow_type(c)) for c in shape.columns)])
    rows = pa.Table.from_pylist([item.row(shape) for item in items], schema)
    return TableChanges(shape.database, shape.table, shape, rows, tuple(removals), **more)


def position(number: int) -> StreamPosition:
    """The position at which batch `number` ends."""
    shards = {shard: ShardPosition(10 * (number + 1), 0, None) for shard in ("-80", "80-")}
    return StreamPosition(0, 1000 * (number + 1), shards)


def batch(number: int, query: str = QUERY) -> PlannedBatch:
    """A batch of a query that follows on the one before it."""
    return PlannedBatch(query, number, position(number - 1), position(number))


class Followed:
    """A second database and the model of what it should hold."""

    def __init__(self, server: TargetServer, follower: str = "commerce", **options: Any) -> None:
        self.server = server
        self.name = server.new_database()
        self.login = server.new_login(self.name)
        self.url = server.url(self.name, *self.login)
        self.options = DatabaseOptions(follower, **options)
        self.database = SqlDatabase(self.url, self.options)
        self.model: dict[int, Settled] = {}
        self.number = -1

    @property
    def strict_shape(self) -> TableShape:
        """ITEMS with a column `doc`: it takes "1", and no text over three characters but JSON."""
        column = Column("doc", ValueKind.JSON, "json")
        if self.url.startswith("mariadb"):  # it keeps JSON as text
            column = Column("doc", ValueKind.STRING, "varchar(3)")
        return replace(ITEMS, columns=(*ITEMS.columns, column))

    def apply(self, *tasks: Sequence[Item], **more: Any) -> None:
        """Apply the changes of several tasks as the next batch, to database and model."""
        self.number += 1
        staged = [each for items in tasks for each in self.database.stage([changes(items, **more)])]
        assert self.database.apply(batch(self.number), staged)
        by_key: dict[int, list[Item]] = {}
        for item in (item for items in tasks for item in items):
            by_key.setdefault(item.key, []).append(item)
        for key, found in by_key.items():
            stored = self.model[key].versions if key in self.model else ()
            self.model[key] = settle(stored, [item.version() for item in found])

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask as superuser, in PostgreSQL's words."""
        return self.server.ask(self.name, query)

    def moves_position(self, cursor: DBAPICursor, number: int) -> bool:
        """Whether the transaction of a cursor has moved the position to a batch."""
        cursor.execute(f"SELECT batch FROM {self.database._dialect.internal('position')}")
        return [row[0] for row in cursor.fetchall()] == [number]

    @property
    def stages(self) -> list[str]:
        """The staging tables that are there."""
        with self.database._transaction() as connection:
            return self.database._dialect.stages(connection, "stage")

    def check(self) -> None:
        """Compare the rows, where they come from, and the hidden ones with the model."""
        visible = {
            (
                key,
                *cast("tuple[object, ...]", settled.visible.row),
                settled.visible.shard,
                settled.visible.seq,
            )
            for key, settled in self.model.items()
            if settled.visible is not None
        }
        found = self.rows("SELECT id, note, amount, _shard, _seq FROM shop.items")
        assert sorted(found) == sorted(visible)
        hidden = {
            (key, *cast("tuple[object, ...]", other.row), other.shard, other.seq)
            for key, settled in self.model.items()
            for other in settled.others
            if other.row is not None
        }
        homes = "SELECT id, note, amount, _shard, _seq FROM _shardstream.homes_1 WHERE NOT _deleted"
        assert sorted(self.rows(homes)) == sorted(hidden)
