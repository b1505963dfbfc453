"""Which messages a change becomes, as Debezium writes them.

An INSERT is `c`, an UPDATE `u`, a DELETE `d` and a tombstone, a READ `r`. An UPDATE that changes
the primary key is a DELETE of the old key and an INSERT of the new one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MESSAGES: Final = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("old_key", pa.binary()),
        pa.field("new_key", pa.binary()),
    ]
)
_OPS: Final = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "READ": "r"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The messages of a batch of rows, in order.

    `row`: the row of each message. `op`: Debezium's letter. `is_tombstone`. `of_old_key`: whether
    its key is the one before the change. `moved_from`, `moved_to`: the halves of a changed key.
    """

    row: npt.NDArray[np.int32]
    op: pa.Array
    is_tombstone: npt.NDArray[np.bool_]
    of_old_key: npt.NDArray[np.bool_]
    moved_from: npt.NDArray[np.bool_]
    moved_to: npt.NDArray[np.bool_]
    is_plain: bool  # one message per row, none of which is a DELETE or a changed key

    def place(self, values: pa.Array) -> pa.Array:
        """Return the values of rows for each message."""
        return values if self.is_plain else values.take(pa.array(self.row))


def layout_of(rows: pa.RecordBatch, *, tombstones: bool) -> Layout:
    """Return the messages of decoded rows (columns op and old_key)."""
    ops = rows["op"].dictionary_encode()
    letters = pa.array([_OPS[op] for op in ops.dictionary.to_pylist()], pa.string())
    op = letters.take(ops.indices)
    is_delete = _plain(pc.equal(rows["op"], "DELETE"))
    is_moved = _plain(rows["old_key"].is_valid()) & ~is_delete
    ends = is_delete | is_moved
    counts = 1 + ends.astype(np.int32) * int(tombstones) + is_moved
    row = np.repeat(np.arange(len(rows), dtype=np.int32), counts)
    step = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_tombstone = ends[row] & (step == 1) & tombstones
    is_new = is_moved[row] & (step == counts[row] - 1)
    of_old_key = ends[row] & ~is_new
    is_plain = not ends.any()
    if not is_plain:
        op = pc.if_else(pa.array(of_old_key), "d", op.take(pa.array(row)))
        op = pc.if_else(pa.array(is_new), "c", op)
    return Layout(
        row=row,
        op=op,
        is_tombstone=is_tombstone,
        of_old_key=of_old_key,
        moved_from=is_moved[row] & ~is_new,
        moved_to=is_new,
        is_plain=is_plain,
    )


def _plain(values: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = values.to_numpy(zero_copy_only=False)
    return found
