"""Which files of a table are worth being rewritten, as part of a batch."""

import math
from collections import defaultdict
from collections.abc import Mapping

from spark_consumers.current_state.log import DataFile, Snapshot

# This many files of about one size, which is less than this part of their bucket's rows, become
# one, which is about as many times as large. A row is thus copied as often as the size of the
# bucket has digits, and a key is looked for in a few files.
SMALL_PART = 1 / 6
FILES_OF_A_SIZE_MAX = 8
# Beyond this part of deleted rows readers read too much for nothing.
DEAD_PART_MAX = 0.3
# Of a task's buckets at most this part is rewritten in a batch, and, beyond one bucket, no more
# rows than a worker has room for.
BUCKETS_PART_MAX = 1 / 4
ROWS_MAX = 500_000


def due_files(
    snapshot: Snapshot, removed: Mapping[str, int], part: tuple[int, int]
) -> list[DataFile]:
    """Return the files that a task rewrites. `removed`: how many rows a batch deletes, by file."""
    task, tasks = part
    groups: dict[tuple[int, int], list[DataFile]] = defaultdict(list)
    for file in snapshot.files.values():
        bucket, buckets = file.bucket
        if buckets >= tasks and bucket % tasks == task:
            groups[file.bucket].append(file)
    urgent = []
    for (_, buckets), files in groups.items():
        urgency, chosen = _choice(files, removed, is_split=buckets < snapshot.buckets)
        if chosen:
            urgent.append((urgency, chosen))
    urgent.sort(key=lambda found: found[0], reverse=True)
    found: list[DataFile] = []
    for _, chosen in urgent[: max(1, int(len(groups) * BUCKETS_PART_MAX))]:
        rows = sum(file.rows - file.dead for file in [*found, *chosen])
        if found and rows > ROWS_MAX:
            break
        found += chosen
    return found


def _choice(
    files: list[DataFile], removed: Mapping[str, int], *, is_split: bool
) -> tuple[float, list[DataFile]]:
    """Return the files of a bucket to rewrite, and how urgent that is."""
    rows = sum(file.rows for file in files)
    dead = sum(file.dead + removed.get(file.path, 0) for file in files) / max(rows, 1)
    if dead > DEAD_PART_MAX:
        return 1 + dead, files
    sizes: dict[int, list[DataFile]] = defaultdict(list)
    for file in files:
        if file.rows < rows * SMALL_PART:
            sizes[int(math.log(max(file.rows, 1), FILES_OF_A_SIZE_MAX))].append(file)
    full = [size for size, found in sizes.items() if len(found) >= FILES_OF_A_SIZE_MAX]
    if full:
        small = [file for size, found in sizes.items() if size <= max(full) for file in found]
        return len(small) / FILES_OF_A_SIZE_MAX, small
    return (0.0, files) if is_split else (0.0, [])
