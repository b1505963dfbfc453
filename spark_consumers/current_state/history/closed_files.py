"""The files of a history's closed rows, which no batch reads or marks.

A task adds one file per batch. Small ones are joined as part of a batch, each row as often as the
size of a full file has digits; full ones stay as they are.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.applying.changes import KEY
from spark_consumers.current_state.compact import FILES_OF_A_SIZE_MAX
from spark_consumers.current_state.files import as_schema, read_file, write_file
from spark_consumers.current_state.history.columns import FROM
from spark_consumers.current_state.log import CLOSED, DataFile
from spark_consumers.current_state.stored_table import Staged, StoredTable

# Files of this size are full. As many smaller ones as are joined fit a worker's memory.
FULL_BYTES = 16 * 1024 * 1024


def with_closed(
    table: StoredTable, staged: Staged, rows: pa.Table, part: tuple[int, int]
) -> Staged:
    """Add closed rows to what a task staged. `part`: (this task, number of tasks)."""
    if not rows.num_rows:
        return staged
    due = due_closed(table.snapshot.closed.values(), part)
    parts = [read_file(table.storage, file.path, table.schema) for file in due]
    joined = pa.concat_tables([*parts, as_schema(rows, table.schema)])
    order = pc.sort_indices(joined, [(KEY, "ascending"), (FROM, "ascending")])
    file = write_file(table.storage, *part, joined.take(order), CLOSED)
    rewritten = {**staged.rewritten, **dict.fromkeys((f.path for f in due), 0)}
    return replace(staged, added=(*staged.added, file), rewritten=rewritten, data_change=True)


def due_closed(files: Iterable[DataFile], part: tuple[int, int]) -> list[DataFile]:
    """Return the files of a task that are joined into one: some of about the same size."""
    sizes: Mapping[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.bucket == part and file.size < FULL_BYTES:
            sizes[int(math.log(max(file.size, 1), FILES_OF_A_SIZE_MAX))].append(file)
    full = [found for _, found in sorted(sizes.items()) if len(found) >= FILES_OF_A_SIZE_MAX]
    return full[0] if full else []
