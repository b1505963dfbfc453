"""Stages what a batch changes in a history, in the task that has the changes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.applying.changes import TableChanges
from spark_consumers.current_state.history.closed_files import with_closed
from spark_consumers.current_state.history.columns import TO, own_columns
from spark_consumers.current_state.history.edit import OpenRows, edited
from spark_consumers.current_state.history.steps import KeysBefore, visible_steps
from spark_consumers.current_state.query.layout import shard_of_mark
from spark_consumers.current_state.stored_table import Staged, StoredTable

# The mark that holds the frontier up to which a history has the changes of its table.
FLOOR_MARK = "shardstream.history_us"


def stage_history(
    table: StoredTable,
    tracked: Sequence[str],
    changes: TableChanges,
    before: KeysBefore,
    part: tuple[int, int],
) -> Staged:
    """Stage the versions that begin and end.

    `tracked`: the columns whose changes begin a version, none for all. `part`: (this
    task, number of tasks). UsageError if the table lacks a column that is tracked.
    """
    marks = table.snapshot.marks
    done = {shard: seq for mark, seq in marks.items() if (shard := shard_of_mark(mark)) is not None}
    own, keys = own_columns(table.schema), before.keys
    columns = tracked_columns(tracked, own, f"{changes.database}.{changes.table}")
    steps = visible_steps(changes, before, done, own)
    found = table.find(keys)
    rows = table.read(found)
    # Another program may have joined files, closed rows among them.
    is_open = pc.is_null(rows[TO]).to_numpy()
    found = found.where(is_open)
    stored = OpenRows(found.change, rows.filter(pa.array(is_open)))
    edit = edited(steps, keys, stored, marks.get(FLOOR_MARK, 0), columns)
    gone = np.zeros(len(found.change), np.bool_)
    gone[edit.gone] = True
    staged = table.stage(found.where(gone), edit.opened, part=part)
    return with_closed(table, staged, edit.closed, part)


def tracked_columns(tracked: Sequence[str], own: pa.Schema, table: str) -> list[str]:
    """Return the columns that are tracked, as the table spells them. UsageError if one is not."""
    names = {name.lower(): name for name in own.names}
    unknown = [name for name in tracked if name.lower() not in names]
    if unknown:
        raise UsageError(
            f"--track: {table} has no column '{unknown[0]}', but {', '.join(own.names)}"
        )
    return [names[name.lower()] for name in tracked] or own.names
