"""Tables and rows whose primary keys have the keyspace id as their last column. Pure."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_consumers.errors import CannotApply, ShapeConflict
from topics.records.table_shape import Column, TableShape, ValueKind

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
    """Return rows of `RecordDecoder.decode` with the keyspace id in both images.

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


def scoped_change(change: Mapping[str, object]) -> dict[str, object]:
    """Return a row of a change log with the keyspace id in its keys and images, as JSON text.

    Its images are whole, or it has no after image. CannotApply: the row has no keyspace id.
    """
    found = dict(change)
    keys: dict[str, str] = {}
    for image in ("before", "after"):
        home, text = change[f"keyspace_id_{image}"], change[image]
        if text is None:
            continue
        if not isinstance(home, bytes):
            table = f"{change['database']}.{change['table']}"
            raise _no_keyspace_id(table, change["shard"], change["seq"])
        is_old = image == "before" and change["old_key"] is not None
        keys[image] = _with_home(str(change["old_key"] if is_old else change["key"]), home)
        found[image] = f'{str(text)[:-1]},"{KEYSPACE_ID}":"{home.hex()}"}}'
    found["key"] = keys.get("after", keys.get("before"))
    has_moved = len(keys) > 1 and keys["before"] != keys["after"]
    found["old_key"] = keys["before"] if has_moved else None
    return found


def _with_home(key: str, home: bytes) -> str:
    return f'{key[:-1]},"{home.hex()}"]'


def _no_keyspace_id(table: str, shard: object, seq: object) -> CannotApply:
    return CannotApply(
        f"{table}, shard {shard}, seq {seq}: the row has no keyspace id, which --key-scope shard "
        f"makes a part of the key: its table had no vindex, or its image lacks the sharding "
        f"column. Leave the table out (name the others with --table), or give it a vindex in the "
        f"settings of the keyspace and start a new target from a copy taken after that"
    )


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
        raise _no_keyspace_id(table, rows["shard"][first], rows["seq"][first])
