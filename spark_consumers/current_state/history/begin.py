"""Begins the histories that a query is to keep."""

import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.applying.changes import TIME
from spark_consumers.current_state.commit import Entry, commit
from spark_consumers.current_state.create import create_table, open_table
from spark_consumers.current_state.history.columns import FROM, history_schema, own_columns
from spark_consumers.current_state.history.staging import FLOOR_MARK, tracked_columns
from spark_consumers.current_state.query.layout import TablePlace
from spark_consumers.current_state.query.merging import conformed
from spark_consumers.current_state.query.task import Target
from spark_consumers.current_state.stored_table import StoredTable


def begin_histories(target: Target) -> None:
    """Fill the new histories of tables that have rows already, each visible since its change.

    UsageError if such a table lacks a column that is tracked.
    """
    for (database, table), tracked in target.histories.items():
        place = TablePlace(target.path, database, table)
        visible = open_table(place.visible, target.storage)
        if visible is not None:
            own = own_columns(history_schema(visible.schema))
            tracked_columns(tracked, own, f"{database}.{table}")
            _begin(place, visible, target)


def _begin(place: TablePlace, visible: StoredTable, target: Target) -> None:
    stored = open_table(place.history, target.storage)
    if stored is not None and stored.snapshot.marks:
        return
    schema, buckets = history_schema(visible.schema), visible.snapshot.buckets
    vectors = target.deletion_vectors
    create_table(place.history, target.storage, schema, buckets, deletion_vectors=vectors)
    history = open_table(place.history, target.storage)
    if history is None:
        raise UsageError(f"{place.history} was removed while it was begun: start again")
    staged, floor_us = [], 0
    for bucket in range(buckets):
        rows = visible.read(visible.everything([bucket]))
        floor_us = max(floor_us, pc.max(rows[TIME]).as_py() or 0)
        opened = conformed(rows.append_column(FROM, rows[TIME]), schema)
        staged.append(history.stage(None, opened, compact=False))
    commit(history, staged, Entry({**visible.snapshot.marks, FLOOR_MARK: floor_us}))
