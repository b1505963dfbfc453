"""Begins the histories that a query is to keep, and refuses to leave out one that is kept."""

from collections.abc import Collection

import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.applying.changes import TIME
from spark_consumers.current_state.commit import Entry, commit
from spark_consumers.current_state.create import create_table, open_table
from spark_consumers.current_state.history.columns import FROM, history_schema
from spark_consumers.current_state.history.staging import FLOOR_MARK
from spark_consumers.current_state.query.frontiers import Frontier
from spark_consumers.current_state.query.layout import TablePlace, place_of
from spark_consumers.current_state.query.merging import conformed
from spark_consumers.current_state.query.task import Target


def check_histories(target: str, newest: Frontier | None, kept: Collection[str]) -> None:
    """UsageError if a target has a history that is not among those that a query keeps.

    `kept`: `database.table`.
    """
    places = [place_of(target, name) for name in (newest.histories if newest else ())]
    for name in sorted(f"{place.database}.{place.table}" for place in places):
        if name not in kept:
            raise UsageError(
                f"{target} has the history of {name}, which would miss the changes of this run: "
                f"pass --history {name}"
            )


def begin_histories(target: Target) -> None:
    """Fill the new histories of tables that have rows already, each visible since its change."""
    for database, table in target.histories:
        _begin(TablePlace(target.path, database, table), target)


def _begin(place: TablePlace, target: Target) -> None:
    visible, stored = (open_table(url, target.storage) for url in (place.visible, place.history))
    if visible is None or (stored is not None and stored.snapshot.marks):
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
