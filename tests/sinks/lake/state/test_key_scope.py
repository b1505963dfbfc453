"""Tables of shards that have the same keys for different rows."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sinks.errors import TargetConflict
from sinks.lake.state.task import TaskTables
from sinks.resume import Origin
from tests.sinks.lake.change_log.log_rows import change as log_row
from tests.sinks.lake.state.batch_queries import PARTITIONS, Query
from tests.sinks.rule.batches import Source, change
from topics.arrow.key_scope import KeyScope
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
        self.target = replace(self.target, origin=origin)
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
