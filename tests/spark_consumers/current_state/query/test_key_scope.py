"""Tables of shards that have the same keys for different rows."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from event_token import ShardPosition, StreamPosition
from spark_consumers.current_state.query.as_of import table_as_of
from spark_consumers.current_state.query.task import TaskTables
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.errors import TargetConflict
from spark_consumers.sink_query.origin import Origin
from tests.spark_consumers.applying.batches import Source, change
from tests.spark_consumers.change_log.log_rows import change as log_row
from tests.spark_consumers.change_log.log_rows import commit_rows
from tests.spark_consumers.current_state.query.batch_queries import PARTITIONS, Query
from topics.records.vevent import Row, VEvent

A, B = b"\x10", b"\x90"


def logged(event: VEvent) -> dict[str, object]:
    """A change as a change log has it."""
    before, after = (
        None if image is None else json.dumps(image, separators=(",", ":"))
        for image in (event.before, event.after)
    )
    keys = [f"[{image['id']!r}]" for image in (event.after, event.before) if image]
    return log_row(
        event.seq,
        shard=event.shard,
        timestamp_us=event.timestamp_us,
        before=before,
        after=after,
        key=keys[0],
        old_key=None if len(set(keys)) == 1 else keys[1],
        keyspace_id_before=event.keyspace_id_before,
        keyspace_id_after=event.keyspace_id_after,
    )


class ScopedQuery(Query):
    """A query of the keyspace `commerce` that takes keys together with their homes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Source(key_scope=KeyScope.SHARD))
        self.become(Origin("commerce", key_scope=KeyScope.SHARD))

    def become(self, origin: Origin) -> None:
        """Go on with other options."""
        self.target = replace(self.target, key_scope=origin.key_scope, origin=origin)
        self.tasks = [TaskTables(self.target) for _ in range(PARTITIONS)]

    def apply(self, *events: VEvent) -> None:
        """Run a batch."""
        self.run(self.source.rows(events))


def rows_of(folder: Path) -> dict[tuple[int, str], int]:
    """The values of a table by key and keyspace id."""
    rows = pa.table(DeltaTable(str(folder / "shop" / "orders")).scan()).to_pylist()
    return {(row["id"], row["_keyspace_id"]): row["value"] for row in rows}


def test_the_same_key_on_two_shards_stays_two_rows_through_a_reshard(tmp_path: Path) -> None:
    """An UPDATE, and a DELETE, on the shard that took over finds the row of its keyspace id."""
    query = ScopedQuery(tmp_path)
    query.apply(
        change("-80", 1, 100, None, {"id": 1, "value": 1}, ids=(None, A)),
        change("80-", 1, 101, None, {"id": 1, "value": 2}, ids=(None, B)),
    )
    first = rows_of(tmp_path)
    row: Row = {"id": 1, "value": 1}
    query.apply(change("-40", 1, 200, row, {"id": 1, "value": 11}, ids=(A, A)))
    second = rows_of(tmp_path)
    query.apply(change("80-c0", 1, 300, {"id": 1, "value": 2}, None, ids=(B, None)))

    assert first == {(1, "10"): 1, (1, "90"): 2}
    assert second == {(1, "10"): 11, (1, "90"): 2}
    assert rows_of(tmp_path) == {(1, "10"): 11}


def test_a_target_keeps_its_keyspace_key_range_and_key_scope(tmp_path: Path) -> None:
    """Rows of another stream would come between those that are there, or get other keys."""
    query = ScopedQuery(tmp_path)
    query.apply(change("-80", 1, 100, None, {"id": 1, "value": 1}, ids=(None, A)))
    own = Origin("commerce", key_scope=KeyScope.SHARD)

    for other, message in (
        (replace(own, keyspace="users"), "begun with keyspace commerce, and this query has users"),
        (replace(own, key_range="-80"), "begun with --key-range -, and this query has -80"),
        (replace(own, key_scope=KeyScope.KEYSPACE), "--key-scope shard, and this .* keyspace"),
    ):
        query.become(other)
        with pytest.raises(TargetConflict, match=message):
            query.apply(change("-80", 2, 200, None, {"id": 2, "value": 1}, ids=(None, A)))
    query.become(own)
    query.apply()
    assert rows_of(tmp_path) == {(1, "10"): 1}


def test_a_time_between_batches_has_the_rows_of_both_shards(tmp_path: Path) -> None:
    """A change log has no keyspace ids in its keys; they are put there."""
    query = ScopedQuery(tmp_path / "state")
    log = [
        change("-80", 1, 100, None, {"id": 1, "value": 1}, ids=(None, A)),
        change("80-", 1, 101, None, {"id": 1, "value": 2}, ids=(None, B)),
        change("-80", 2, 200, {"id": 1, "value": 1}, {"id": 1, "value": 11}, ids=(A, A)),
        change("80-", 2, 201, {"id": 1, "value": 2}, None, ids=(B, None)),
        change("-80", 3, 300, {"id": 1, "value": 11}, {"id": 2, "value": 11}, ids=(A, A)),
    ]
    rows = query.source.rows(log)
    query.run(rows[:2], frontier_us=150)
    query.run(rows[2:], frontier_us=400)
    shards = {shard: ShardPosition(9, 9, None) for shard in ("-80", "80-")}
    changelog = str(tmp_path / "log")
    end = StreamPosition(0, 400, shards)
    commit_rows(changelog, [logged(each) for each in log], 0, contiguous=False, end=end)

    def as_of(time_us: int) -> dict[tuple[int, str], int]:
        target = str(tmp_path / "state")
        found = table_as_of(target, "shop.orders", time_us, changelog=changelog).rows.to_pylist()
        return {(row["id"], row["_keyspace_id"]): row["value"] for row in found}

    assert as_of(200) == {(1, "10"): 1, (1, "90"): 2}
    assert as_of(202) == {(1, "10"): 11}
    assert as_of(350) == {(2, "10"): 11}
    assert as_of(350) == rows_of(tmp_path / "state")
