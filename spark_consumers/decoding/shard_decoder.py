"""Decodes records of a shard log into Arrow record batches of the requested columns."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from event_token import KeyRange
from event_token.token import TOKEN_VERSION
from spark_consumers.decoding.column_readers import builder_for
from spark_consumers.decoding.output_columns import IMAGES, OutputColumns
from spark_consumers.decoding.schema_plans import PlanMaker
from spark_consumers.errors import HiddenValue
from spark_consumers.row_columns.builders import (
    BooleanBuilder,
    ColumnBuilder,
    StructBuilder,
    TextBuilder,
    TextListBuilder,
)
from spark_consumers.row_columns.envelope_columns import EnvelopeColumns
from spark_consumers.row_columns.hop_filter import HopFilter
from spark_consumers.row_columns.key_range import KeyRangeFilter
from spark_consumers.row_columns.records import RecordLoop
from topics.errors import CorruptRecord
from topics.reading.seen_before import SeenBefore
from topics.records.table_shape import ALL_EVENT_TYPES, OPS


class ShardDecoder:
    """Decodes the records of one shard log, in order, into batches of the requested columns.

    It cannot be used after an error, because its columns may hold half a row.
    """

    def __init__(
        self,
        shard: str,
        output: OutputColumns,
        text_of: Callable[[int], str],
        key_range: KeyRange | None = None,
    ) -> None:
        """`text_of` returns the schema text of an id; rows outside `key_range` are left out."""
        self.shard = shard
        self._schema = output.arrow_schema()
        self._builders = {field.name: builder_for(field.type) for field in self._schema}
        columns = EnvelopeColumns()
        for name, builder in self._builders.items():
            if name not in IMAGES:
                setattr(columns, name, builder)
        self._loop = RecordLoop(
            shard=shard,
            columns=columns,
            event_types=[name.encode() for name in ALL_EVENT_TYPES],
            ops=[name.encode() for name in OPS],
            plan_of=PlanMaker(output, self._builders, text_of).plan_of,
            token_version=TOKEN_VERSION,
            key_range=None if key_range is None else KeyRangeFilter(key_range.contains),
        )

    def begin(self, first_seq: int, late_before_us: int, seen: SeenBefore | None = None) -> None:
        """Expect `first_seq` next; records older than `late_before_us` are late.

        `seen`: what the stream had read before it hopped here without marks; those are dropped.
        """
        self._loop.seq = first_seq - 1
        self._loop.late_before_us = late_before_us
        self._loop.hop_filter = None if seen is None else HopFilter(seen.hop_time_us, seen.is_seen)

    @property
    def last_seq(self) -> int:
        """The seq of the last record decoded."""
        return int(self._loop.seq)

    def decode(self, records: Sequence[bytes], offsets: Sequence[int]) -> pa.RecordBatch:
        """Return the rows of the records, without other tables, other ranges and rows seen before.

        CorruptRecord: a record cannot be read. LogGap, LogRepeat: its `seq` is not the next one.
        RowImageMissing: a row lacks what is needed to tell whether it lies in the key range.
        HiddenValue: NULL would stand for an absent column or an invalid date, and nothing tells.
        """
        try:
            self._loop.decode(list(records), list(offsets))
        except HiddenValue as error:
            raise HiddenValue(f"shard {self.shard}, offset {self._loop.offset}: {error}") from error
        except (IndexError, ValueError, OverflowError) as error:
            raise CorruptRecord(
                f"shard {self.shard}, offset {self._loop.offset}: the record cannot be read: "
                f"{error}"
            ) from error
        return self._take()

    def _take(self) -> pa.RecordBatch:
        rows = int(self._loop.rows)
        self._loop.rows = 0
        arrays = [take_array(self._builders[f.name], f.type) for f in self._schema]
        for field, array in zip(self._schema, arrays, strict=True):
            if len(array) != rows:
                raise ValueError(f"column {field.name} has {len(array)} of {rows} rows")
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def take_array(builder: ColumnBuilder, kind: pa.DataType) -> pa.Array:
    """Return what was built as an Arrow array, and reset the builder."""
    taken = builder.take()
    rows = int(taken.rows)
    valid = _bits(taken.valid) if taken.valid else None
    values = pa.py_buffer(taken.values)
    match builder:
        case StructBuilder():
            children = [
                take_array(child, kind.field(i).type) for i, child in enumerate(builder.children)
            ]
            return pa.Array.from_buffers(kind, rows, [valid], children=children)
        case TextListBuilder():
            offsets = pa.py_buffer(b"\0\0\0\0" + taken.offsets)
            items = take_array(builder.items, kind.value_type)
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
