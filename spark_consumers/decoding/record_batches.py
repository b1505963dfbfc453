"""Decodes records into Arrow record batches of an output's columns."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from event_token.token import TOKEN_VERSION
from spark_consumers.decoding.column_readers import builder_for
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.output_columns import IMAGES, OutputColumns
from spark_consumers.decoding.schema_plans import PlanMaker
from spark_consumers.row_columns.builders import (
    BooleanBuilder,
    ColumnBuilder,
    StructBuilder,
    TextBuilder,
    TextListBuilder,
)
from spark_consumers.row_columns.envelope_columns import EnvelopeColumns
from spark_consumers.row_columns.key_range import KeyRangeFilter
from spark_consumers.row_columns.records import RecordLoop
from topics.records.table_shape import ALL_EVENT_TYPES, OPS


class BatchDecoder:
    """A `RecordLoop` with the builders that it fills.

    It cannot be used after an error, because its columns may hold half a row.
    """

    def __init__(
        self,
        output: OutputColumns,
        text_of: Callable[[int], str],
        *,
        shard: str | None,
        key_range: KeyRangeFilter | None = None,
    ) -> None:
        """`text_of` returns the schema text of an id; the others are those of `RecordLoop`."""
        self.schema = output.arrow_schema()
        self._builders = {field.name: builder_for(field.type) for field in self.schema}
        columns = EnvelopeColumns()
        for name, builder in self._builders.items():
            if name not in IMAGES:
                setattr(columns, name, builder)
        self.loop = RecordLoop(
            shard=shard,
            columns=columns,
            event_types=[name.encode() for name in ALL_EVENT_TYPES],
            ops=[name.encode() for name in OPS],
            plan_of=PlanMaker(output, self._builders, text_of).plan_of,
            token_version=TOKEN_VERSION,
            key_range=key_range,
            keys_have_home=output.key_scope is KeyScope.SHARD,
        )

    def decode(self, records: Sequence[bytes], offsets: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of the records. Raises what `RecordLoop.decode` does."""
        self.loop.decode(list(records), list(offsets))
        rows = int(self.loop.rows)
        self.loop.rows = 0
        arrays = [_take_array(self._builders[f.name], f.type) for f in self.schema]
        for field, array in zip(self.schema, arrays, strict=True):
            if len(array) != rows:
                raise ValueError(f"column {field.name} has {len(array)} of {rows} rows")
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _take_array(builder: ColumnBuilder, kind: pa.DataType) -> pa.Array:
    """Return what was built as an Arrow array, and reset the builder."""
    taken = builder.take()
    rows = int(taken.rows)
    valid = _bits(taken.valid) if taken.valid else None
    values = pa.py_buffer(taken.values)
    match builder:
        case StructBuilder():
            children = [
                _take_array(child, kind.field(i).type) for i, child in enumerate(builder.children)
            ]
            return pa.Array.from_buffers(kind, rows, [valid], children=children)
        case TextListBuilder():
            offsets = pa.py_buffer(b"\0\0\0\0" + taken.offsets)
            items = _take_array(builder.items, kind.value_type)
            return pa.Array.from_buffers(kind, rows, [valid, offsets], children=[items])
        case TextBuilder():
            offsets = pa.py_buffer(b"\0\0\0\0" + taken.offsets)
            return pa.Array.from_buffers(kind, rows, [valid, offsets, values])
        case BooleanBuilder():
            return pa.Array.from_buffers(kind, rows, [valid, _bits(taken.values)])
        case _:
            return pa.Array.from_buffers(kind, rows, [valid, values])


def _bits(flags: bytes) -> pa.Buffer:
    """Pack one byte per flag into one bit per flag."""
    return pa.py_buffer(np.packbits(np.frombuffer(flags, np.uint8), bitorder="little").tobytes())
