"""What a key range sees of rows that were decoded from their records. Pure."""

import pyarrow as pa
import pyarrow.compute as pc

from topics.records.vevent import Op

# What a key range hides of an UPDATE that crosses its border, by the op that the range sees.
_HIDDEN = {
    Op.INSERT.value: ("before", "keyspace_id_before"),
    Op.DELETE.value: ("after", "keyspace_id_after"),
}


def as_seen(batch: pa.RecordBatch, ops: pa.Array) -> pa.RecordBatch:
    """Return what a key range sees of the rows, given the ops that it sees; nearly always all.

    `batch` has column op, `key` only together with `old_key`.
    """
    if batch["op"].equals(ops):
        return batch
    columns = {name: batch[name] for name in batch.schema.names}
    is_cut = pc.not_equal(columns["op"], ops)
    for op, hidden in _HIDDEN.items():
        is_hidden = pc.and_(is_cut, pc.equal(ops, op))
        for name in columns.keys() & set(hidden):
            columns[name] = _null_where(is_hidden, columns[name])
    if "key" in columns:
        is_gone = pc.and_(is_cut, pc.equal(ops, Op.DELETE.value))
        old_key = pc.coalesce(columns["old_key"], columns["key"])
        columns["key"] = pc.if_else(is_gone, old_key, columns["key"])
        columns["old_key"] = _null_where(is_cut, columns["old_key"])
    columns["op"] = ops
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


def _null_where(is_hidden: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(is_hidden, pa.scalar(None, values.type), values)
