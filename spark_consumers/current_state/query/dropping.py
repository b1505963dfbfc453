"""Drops the columns that no live shard of the source has any more (`--drop-columns`).

A frontier tells which columns shards lack. What follows from that is done after it, and before the
next batch: what tasks stage does not know of it. A dropped column is a rewrite of the table without
it: no reader needs column mapping, and no file keeps values that could come back.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import HOME, SEQ, SHARD, TIME, Told
from spark_consumers.applying.homes import Version
from spark_consumers.applying.shard_columns import (
    Dropped,
    Lacking,
    as_json,
    followed,
    is_before,
    of_json,
    to_drop,
    without,
)
from spark_consumers.current_state.create import open_table
from spark_consumers.current_state.query.columns import hidden_schema, known_table, visible_schema
from spark_consumers.current_state.query.frontiers import Frontier
from spark_consumers.current_state.query.layout import TablePlace, place_of
from spark_consumers.current_state.query.rewriting import rewrite
from spark_consumers.current_state.query.task import TableWork, Target
from spark_consumers.current_state.stored_table import StoredTable

# The number of the frontier after which a table's columns were dropped.
DROPPED_MARK = "shardstream.dropped"


@dataclass(frozen=True, slots=True)
class Held:
    """What a target holds once the columns are dropped that its newest frontier tells of.

    `lacking`: by the tables' places below the target. `visible`: the tables of visible rows that
    the frontier tells of. `is_rewritten`: whether one of them was rewritten now.
    """

    lacking: Mapping[str, Lacking] = field(default_factory=dict)
    visible: Mapping[TablePlace, StoredTable] = field(default_factory=dict)
    is_rewritten: bool = False

    def versions(self, target: Target) -> dict[str, int]:
        """Return the versions of these tables, which may have been rewritten after the frontier."""
        found = {place.name: table.snapshot.version for place, table in self.visible.items()}
        for place in self.visible:
            hidden = open_table(place.hidden, target.storage)
            if hidden is not None:
                found[place.hidden_name] = hidden.snapshot.version
        return found


@dataclass(frozen=True, slots=True)
class _Lost:
    """What a frontier tells of one table: columns that shards lack, and that one added again."""

    lacking: Lacking
    again: Sequence[Dropped] = ()


@dataclass(frozen=True, slots=True)
class _Due:
    """Columns of a table that are to go, changes whose columns lose older values, and the marks."""

    gone: Collection[str]
    left: Sequence[Dropped]
    marks: Mapping[str, int]


def drop_columns(target: Target, newest: Frontier | None) -> Held:
    """Drop the columns that no live shard has, and clear those that a shard has added again.

    Retry: another program wrote to a table meanwhile.
    """
    if newest is None or newest.lacking is None or not target.drop_columns:
        return Held()
    lacking: dict[str, Lacking] = {}
    opened: dict[TablePlace, StoredTable] = {}
    is_rewritten = False
    for name, lost in _parsed(newest.lacking).items():
        place = place_of(target.path, name)
        lacking[name] = lost.lacking
        visible = open_table(place.visible, target.storage)
        if visible is None or (place.database, place.table) in target.histories:
            continue
        known = known_table(place.database, place.table, visible.schema)
        gone = to_drop(lost.lacking, known.shape, newest.position.shards)
        lacking[name] = {c: shards for c, shards in lost.lacking.items() if c not in gone}
        if visible.snapshot.marks.get(DROPPED_MARK, 0) < newest.number:
            left = [dropped for dropped in lost.again if dropped[0] not in gone]
            due = _Due(gone, left, {DROPPED_MARK: newest.number})
            is_rewritten |= _rewritten(target, place, visible, due)
        opened[place] = visible
    return Held(lacking, opened, is_rewritten)


def lacking_after(
    target: Target,
    works: Iterable[TableWork],
    before: Mapping[str, Lacking],
    live: Collection[str],
) -> str | None:
    """Return which columns shards lack after a batch, for the frontier; None: none of any table."""
    if not target.drop_columns:
        return None
    told: dict[str, list[Told]] = {}
    for work in works:
        if work.told:
            told.setdefault(work.place.name, []).append(work.told)
    found: dict[str, object] = {}
    for name in sorted(before.keys() | told):
        place = place_of(target.path, name)
        visible = open_table(place.visible, target.storage)
        if visible is None:
            continue
        known = known_table(place.database, place.table, visible.schema)
        now, again = followed(before.get(name, {}), told.get(name, ()), known, live)
        if now or again:
            listed = [(column, at.shard, at.seq, at.timestamp_us) for column, at in again]
            found[name] = {"lacking": as_json(now), "again": listed}
    return json.dumps(found) if found else None


def _parsed(text: str) -> dict[str, _Lost]:
    return {
        name: _Lost(
            of_json(found["lacking"]),
            [
                (column, Version(shard, seq, timestamp_us, None, None))
                for column, shard, seq, timestamp_us in found["again"]
            ],
        )
        for name, found in json.loads(text).items()
    }


def _rewritten(
    target: Target,
    place: TablePlace,
    visible: StoredTable,
    due: _Due,
) -> bool:
    """Rewrite a table where something is to go; tell whether that was so."""
    if not due.gone and not due.left:
        return False
    hidden = open_table(place.hidden, target.storage)
    tables = [table for table in (hidden, visible) if table is not None]
    if not due.gone and not any(_has_older(table, each) for table in tables for each in due.left):
        return False
    known = known_table(place.database, place.table, visible.schema)
    schema = visible_schema(without(known, due.gone))
    # The table of visible rows comes last: it tells whether the other one is done.
    rewrite(place.hidden, target.storage, hidden_schema(schema), {}, dropped=due.left)
    rewrite(place.visible, target.storage, schema, {}, dropped=due.left, marks=due.marks)
    return True


def _has_older(table: StoredTable, dropped: Dropped) -> bool:
    """Tell whether rows have values in a column from before it was dropped."""
    column, at = dropped
    if column not in table.schema.names:
        return False
    for bucket in range(table.snapshot.buckets):
        rows = table.read(table.everything([bucket]), (HOME, SHARD, SEQ, TIME, column))
        older: pa.Array = pc.and_(is_before(rows, at), pc.is_valid(rows[column].combine_chunks()))
        if pc.any(older, min_count=0).as_py():
            return True
    return False
