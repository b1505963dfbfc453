"""Rows as a key scope or a key range has them: with the keyspace id, or without an image. Pure."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from topics.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind
from topics.records.vevent import Op

KEYSPACE_ID = "_keyspace_id"
# Hexadecimal digits: ids have 8 or 16 bytes, and with vindex `binary` those of the value.
_COLUMN = Column(KEYSPACE_ID, ValueKind.STRING, "varchar(255)")


def scoped_shape(shape: TableShape) -> TableShape:
    """Return a table version with the keyspace id as its last column and last part of its key.

    A table without a primary key stays without one. ShapeConflict: the table has such a column.
    """
    if any(column.name.lower() == KEYSPACE_ID for column in shape.columns):
        raise ShapeConflict(
            f"{shape.database}.{shape.table} has a column '{KEYSPACE_ID}', which is the name that "
            f"--key-scope shard gives to the keyspace id: rename the column, or leave the table out"
        )
    key = (*shape.primary_key, len(shape.columns)) if shape.primary_key else ()
    return replace(shape, columns=(*shape.columns, _COLUMN), primary_key=key)


def with_keyspace_ids(shape: TableShape, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of `TableDecoder.decode` with the keyspace id in both images.

    `shape`: for messages. CannotApply: a row has none.
    """
    before, after = rows["keyspace_id_before"], rows["keyspace_id_after"]
    # An image that lacks columns may lack the sharding column; then the row stays where it is.
    is_partial = pc.and_(rows["absent"].is_valid(), rows["after"].is_valid())
    after = pc.if_else(is_partial, pc.coalesce(after, before), after)
    _check(shape, rows, rows["before"], before)
    _check(shape, rows, rows["after"], after)
    columns = {name: rows[name] for name in rows.schema.names}
    columns["before"] = _with_id(rows["before"], before)
    columns["after"] = _with_id(rows["after"], after)
    columns["keyspace_id_after"] = after
    return pa.RecordBatch.from_pydict(columns)


def _with_id(image: pa.StructArray, ids: pa.Array) -> pa.StructArray:
    texts = pa.array([None if each is None else each.hex() for each in ids.to_pylist()])
    fields = [*image.type, pa.field(KEYSPACE_ID, pa.string())]
    children = [*image.flatten(), texts.cast(pa.string())]
    return pa.StructArray.from_arrays(children, fields=fields, mask=image.is_null())


def _check(shape: TableShape, rows: pa.RecordBatch, image: pa.StructArray, ids: pa.Array) -> None:
    without = pc.and_(image.is_valid(), ids.is_null())
    first = pc.index(without, value=True).as_py()
    if first >= 0:
        table = f"{shape.database}.{shape.table}"
        raise CannotApply(
            f"{table}, shard {rows['shard'][first]}, seq {rows['seq'][first]}: the row has no "
            f"keyspace id, which --key-scope shard makes a part of the key: its table had no "
            f"vindex, or its image lacks the sharding column. Leave the table out (name the others "
            f"with --table), or give it a vindex in the settings of the keyspace and start a new "
            f"target from a copy taken after that"
        )


# What a key range hides of an UPDATE that crosses its border, by the op that the range sees.
_HIDDEN = {
    Op.INSERT.value: ("before", "keyspace_id_before"),
    Op.DELETE.value: ("after", "keyspace_id_after"),
}


def cut_to_range(batch: pa.RecordBatch, ops: pa.Array) -> pa.RecordBatch:
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
