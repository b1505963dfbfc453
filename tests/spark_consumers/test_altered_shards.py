"""One shard is altered an hour before the other: every sink has the rows of the servers."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token import ShardPosition, StreamPosition
from sinks.rule.policy import RowPolicy
from sinks.rule.task_changes import FollowedTables
from sinks.table_topics.envelope.table_encoder import TableEncoder
from sinks.table_topics.moves import RecentHomes, RecordPlace
from sinks.table_topics.options import EnvelopeOptions
from sinks.table_topics.task_rows import TableMessages
from tests.database_servers import DatabaseFixture
from tests.postgres_servers import PostgresFixture
from tests.sinks.database.followed import Followed, batch
from tests.sinks.lake.state.batch_queries import Query
from tests.sinks.rule.batches import Source, no_copies, routed
from tests.spark_consumers.altered_shards import COLUMNS, AlteredShards
from topics.records.vevent import VEvent

PARTITIONS = 2
# Versions of both shards are in one batch, or each change is a batch.
TOGETHER = (True, False)


@pytest.fixture(scope="module", params=["mysql_a", "mariadb_a"])
def altered(real_servers: None, request: pytest.FixtureRequest) -> AlteredShards:
    """The log of both shards, on servers of each family in turn."""
    server: DatabaseFixture = request.getfixturevalue(request.param)
    return AlteredShards(server)


def batches_of(altered: AlteredShards, *, together: bool) -> Iterator[Sequence[VEvent]]:
    """All events in one batch, or each in its own."""
    if together:
        yield altered.events
    else:
        yield from ([event] for event in altered.events)


@pytest.mark.parametrize(
    ("together", "drop_columns"), [(True, False), (False, True), (False, False)]
)
def test_current_state(
    altered: AlteredShards, tmp_path: Path, *, together: bool, drop_columns: bool
) -> None:
    """New, wider, renamed and dropped columns of the one shard beside the old ones of the other."""
    query = Query(tmp_path, Source(), drop_columns=drop_columns)
    both = {shard: ShardPosition(0, 0, None) for shard in ("-80", "80-")}
    query.position = StreamPosition(0, 0, both)

    for events in batches_of(altered, together=together):
        query.run_until_done(query.source.rows(events))

    rows = pa.table(DeltaTable(str(tmp_path / "shop" / "items")).scan()).to_pylist()
    assert {"gone" in row for row in rows} == {not drop_columns}
    found = {row["id"]: tuple(row[name] for name in COLUMNS.split(", ")) for row in rows}
    assert found == altered.rows


@pytest.mark.parametrize(
    ("together", "drop_columns"), [(True, False), (False, False), (False, True)]
)
def test_second_database(
    altered: AlteredShards, postgres: PostgresFixture, *, together: bool, drop_columns: bool
) -> None:
    """New, wider, renamed and dropped columns of the one shard beside the old ones of the other."""
    followed = Followed(postgres, drop_columns=drop_columns)
    followed.database.prepare()
    source = Source()

    for number, events in enumerate(batches_of(altered, together=together)):
        known = followed.database.known()
        following = FollowedTables(
            known, RowPolicy(drop_columns=drop_columns), on_unlogged=no_copies
        )
        changes = source.changes(events, following, partitions=PARTITIONS)
        assert followed.database.apply_arrow(batch(number), changes)

    rows = followed.rows(f"SELECT {COLUMNS} FROM shop.items")
    assert {row[0]: row for row in rows} == altered.rows
    [table] = followed.database.known().values()
    assert ("gone" in {column.name for column in table.shape.columns}) is not drop_columns


@pytest.mark.parametrize("together", TOGETHER)
def test_table_topics(altered: AlteredShards, *, together: bool) -> None:
    """A message has the columns that its shard had then; the last one of each key is its row."""
    source = Source()
    tasks = [(messages_of(source), RecentHomes()) for _ in range(PARTITIONS)]
    last: dict[int, Any] = {}
    columns = []

    for events in batches_of(altered, together=together):
        rows = source.rows(events)
        for task, (messages, homes) in enumerate(tasks):
            of_task = routed(rows, PARTITIONS, task)
            of_task = of_task.append_column("offset", of_task["seq"])
            for message in messages.messages(of_task, homes):
                row = None if message.value is None else json.loads(message.value)["after"]
                last[json.loads(message.key)["id"]] = row
                columns += [] if row is None else [tuple(row)]

    assert {key: typed(row) for key, row in last.items() if row is not None} == altered.rows
    assert set(columns) == {
        ("id", "note", "amount", "gone"),
        ("id", "memo", "amount", "at"),
    }


def messages_of(source: Source) -> TableMessages:
    """The encoders of a task."""

    def fetch(place: RecordPlace) -> bytes:
        raise AssertionError(place)

    return TableMessages(
        source.schema_ids.text_of,
        {},
        open_encoder=lambda shape: TableEncoder(shape, EnvelopeOptions("ks", "p")),
        ensure_topic=lambda _: None,
        fetch=fetch,
    )


def typed(row: dict[str, Any]) -> tuple[Any, ...]:
    """A row of a message as the server's client gives it."""
    at = row["at"]
    epoch = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None)
    return (
        row["id"],
        row["memo"],
        row["amount"],
        None if at is None else epoch + timedelta(microseconds=at),
    )
