"""The shards of a table have columns of different types for a while: every target has all rows."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks.rule.policy import OnTypeChange, RowPolicy
from sinks.rule.task_changes import FollowedTables
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import Followed, batch
from tests.sinks.database.mysql_targets import MysqlTargets
from tests.sinks.lake.state.batch_queries import PARTITIONS, Query
from tests.sinks.rule.batches import ORDERS, Source, change
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Row, VEvent

Rows = dict[int, tuple[Any, ...]]
Target = Callable[[Source, Sequence[Sequence[VEvent]], OnTypeChange, str], Rows]

LABEL = "a label of more characters than the other shard's texts"
DEEP = '{"a":' * 59 + "[1]" + "}" * 59
JSON = Column("v", ValueKind.JSON, "json")
LONG = Column("v", ValueKind.STRING, "longtext")
SHORT = Column("v", ValueKind.STRING, "varchar(5)")
# By case: what shard 80- has when -80 still has the first, a value of each, and how it ends.
TEXTS = {
    "longer label": (Column("v", ValueKind.ENUM, f"enum('{LABEL}')", labels=(LABEL,)), LABEL),
    "JSON": (JSON, '{"a": [1, 2, 3, 4, 5, 6]}'),
}
OTHERS = {
    "SET to VARCHAR": (
        Column("v", ValueKind.SET, "set('x','y')", labels=("x", "y")),
        ["x", "y"],
        SHORT,
        "x,y,z",
    ),
    "TINYINT to BIGINT UNSIGNED": (
        Column("v", ValueKind.INT, "tinyint"),
        -128,
        Column("v", ValueKind.UNSIGNED_LONG, "bigint unsigned"),
        2**64 - 1,
    ),
}


def with_column(column: Column) -> TableShape:
    """The table with a column."""
    return replace(ORDERS, columns=(ORDERS.columns[0], column))


def altered_later(first: tuple[Column, Any], second: tuple[Column, Any]) -> list[list[VEvent]]:
    """Batches: both shards have the first column; 80- is altered, and -80 only later."""
    (old, a), (new, b) = first, second

    def row(shard: str, seq: int, number: int, value: Any, column: Column) -> VEvent:
        after: Row = {"id": number, "v": value}
        shape = with_column(column)
        return change(shard, seq, 100 * seq + len(shard), None, after, shape=shape)

    return [
        [row("-80", 1, 1, a, old), row("80-", 1, 2, a, old)],
        [row("-80", 2, 3, a, old), row("80-", 2, 4, b, new)],
        [row("-80", 3, 5, a, old)],
        [row("-80", 4, 6, b, new), row("80-", 3, 7, b, new)],
    ]


def state_at(folder: Path) -> Target:
    """A lake."""

    def run(
        source: Source, batches: Sequence[Sequence[VEvent]], choice: OnTypeChange, columns: str
    ) -> Rows:
        query = Query(folder, source)
        query.choose(on_type_change=choice)
        for events in batches:
            query.run_until_done(source.rows(events))
        rows = pa.table(DeltaTable(str(folder / "shop" / "orders")).scan()).to_pylist()
        return {row["id"]: tuple(row[name] for name in columns.split(", ")) for row in rows}

    return run


def database_on(server: PostgresFixture | MysqlTargets) -> Target:
    """A second database."""

    def run(
        source: Source, batches: Sequence[Sequence[VEvent]], choice: OnTypeChange, columns: str
    ) -> Rows:
        followed = Followed(server, on_type_change=choice)
        followed.database.prepare()
        for number, events in enumerate(batches):
            policy = RowPolicy(on_type_change=choice)
            following = FollowedTables(followed.database.known(), policy)
            changes = source.changes(events, following, partitions=PARTITIONS)
            assert followed.database.apply_arrow(batch(number), changes)
        return {
            row[0]: tuple(row[1:])
            for row in followed.rows(f"SELECT id, {columns} FROM shop.orders")
        }

    return run


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """A lake, or a second database on a server."""
    if request.param == "state":
        return state_at(tmp_path)
    server = request.getfixturevalue(request.param)
    return database_on(MysqlTargets(server) if isinstance(server, DatabaseFixture) else server)


ON_ALL_TARGETS = pytest.mark.parametrize(
    "target", ["state", "postgres", "mysql_a", "mariadb_a"], indirect=True
)


@ON_ALL_TARGETS
@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize("case", TEXTS)
def test_a_text_takes_what_the_other_shard_declares_longer(target: Target, case: str) -> None:
    """ENUM and JSON beside VARCHAR(5): the column has room for the values of all shards."""
    column, value = TEXTS[case]
    batches = altered_later((column, value), (SHORT, "short"))

    found = target(Source(), batches, OnTypeChange.STOP, "v")

    texts = dict.fromkeys((1, 2, 3, 5), (value,)) | dict.fromkeys((4, 6, 7), ("short",))
    assert found == texts


@ON_ALL_TARGETS
@pytest.mark.usefixtures("real_servers")
@pytest.mark.parametrize("case", OTHERS)
def test_a_type_that_holds_not_all_values_stops_or_goes_on_beside(
    target: Target, case: str
) -> None:
    """SET beside VARCHAR, TINYINT beside BIGINT UNSIGNED: named, or kept in a column of its own."""
    old, a, new, b = OTHERS[case]
    batches = altered_later((old, a), (new, b))

    found = target(Source(), batches, OnTypeChange.NEW_COLUMN, "v, v__v2")

    assert {number: tuple(map(plain, row)) for number, row in found.items()} == {
        **{number: (plain(a), None) for number in (1, 2, 3, 5)},
        **{number: (None, plain(b)) for number in (4, 6, 7)},
    }


@pytest.mark.parametrize("case", OTHERS)
def test_a_type_that_holds_not_all_values_is_named(tmp_path: Path, case: str) -> None:
    """SET beside VARCHAR, TINYINT beside BIGINT UNSIGNED: by default the query stops."""
    old, a, new, b = OTHERS[case]

    with pytest.raises(ShapeConflict, match=r"shop.orders: column 'v' is .* no type holds"):
        state_at(tmp_path)(Source(), altered_later((old, a), (new, b)), OnTypeChange.STOP, "v")


def plain(value: Any) -> Any:
    """A value whose type does not depend on the target."""
    if isinstance(value, str) and value.startswith(("{", "x,y")):
        return value.strip("{}")
    return ",".join(value) if isinstance(value, list) else _number(value)


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) else value


@ON_ALL_TARGETS
@pytest.mark.usefixtures("real_servers")
def test_json_that_is_nested_deeply_arrives(target: Target) -> None:
    """Sixty levels, from MySQL's JSON and from MariaDB's, which the binlog shows as LONGTEXT."""
    batches = [
        [change("-80", 1, 100, None, {"id": 1, "v": DEEP}, shape=with_column(JSON))],
        [change("80-", 1, 101, None, {"id": 2, "v": DEEP}, shape=with_column(LONG))],
        [change("-80", 2, 102, None, {"id": 3, "v": DEEP}, shape=with_column(JSON))],
    ]

    found = target(Source(), batches, OnTypeChange.STOP, "v")

    assert {number: json.loads(value) for number, (value,) in found.items()} == dict.fromkeys(
        (1, 2, 3), json.loads(DEEP)
    )
