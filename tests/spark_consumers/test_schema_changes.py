"""Each change of a source's table, on each sink that keeps rows: one named test."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token import ShardPosition, StreamPosition
from event_token.errors import Retry
from sinks.rule.policy import RowPolicy
from sinks.rule.task_changes import FollowedTables
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import Followed, batch
from tests.sinks.lake.state.batch_queries import PARTITIONS, Query
from tests.sinks.rule.batches import Source, no_copies
from tests.spark_consumers.schema_changes import BOTH, SCHEMA_CHANGES, SHADOW, SchemaChange
from topics.errors import ShapeConflict

EACH = pytest.mark.parametrize("case", SCHEMA_CHANGES.values(), ids=SCHEMA_CHANGES)


@EACH
def test_current_state(case: SchemaChange, tmp_path: Path) -> None:
    """The table has the rows that the case says, or the query stops by name."""
    query = Query(tmp_path, Source(), drop_columns=case.drop_columns)
    query.choose(on_type_change=case.on_type_change)
    query.position = StreamPosition(0, 0, {s: ShardPosition(0, 0, None) for s in BOTH})
    *first, last = (query.source.rows(events) for events in case.batches)
    for rows in first:
        query.run_until_done(rows)
    if case.error:
        with pytest.raises(ShapeConflict, match=case.error):
            query.run(last)
        return

    query.run_until_done(last)

    found = pa.table(DeltaTable(str(tmp_path / "shop" / "orders")).scan()).to_pylist()
    assert {row["id"]: tuple(row[name] for name in case.columns) for row in found} == case.rows
    assert not {*case.absent} & {name for row in found for name in row}
    assert not DeltaTable.is_deltatable(str(tmp_path / "shop" / SHADOW.table))


@EACH
def test_second_database(case: SchemaChange, postgres: PostgresFixture) -> None:
    """The table has the rows that the case says, or the query stops by name."""
    followed = Followed(
        postgres, on_type_change=case.on_type_change, drop_columns=case.drop_columns
    )
    followed.database.prepare()
    source = Source()
    for number in range(len(case.batches)):
        if case.error and number == len(case.batches) - 1:
            with pytest.raises(ShapeConflict, match=case.error):
                take(followed, source, case, number)
            return
        try:
            take(followed, source, case, number)
        except Retry:
            take(followed, source, case, number)

    [known] = followed.database.known().values()
    assert not {*case.absent} & {column.name for column in known.shape.columns}
    rows = followed.rows(f"SELECT id, {', '.join(case.columns)} FROM shop.orders")
    assert {row[0]: tuple(row[1:]) for row in rows} == case.rows


def take(followed: Followed, source: Source, case: SchemaChange, number: int) -> None:
    """Apply a batch."""
    following = FollowedTables(
        followed.database.known(),
        RowPolicy(on_type_change=case.on_type_change, drop_columns=case.drop_columns),
        on_unlogged=no_copies,
    )
    changes = source.changes(case.batches[number], following, partitions=PARTITIONS)
    assert followed.database.apply_arrow(batch(number), changes)
