"""Decodes records into Arrow record batches: those of a shard log in order, or rows of any table.

A task of a sink gets the rows of its keys, of all shards and tables, with the source column
`record`. Each table version has columns of its own, so a version that appears while a query runs
needs no restart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from event_token import KeyRange
from event_token.errors import UsageError
from event_token.token import TOKEN_VERSION
from topics.arrow.columns.builders import (
    BooleanBuilder,
    ColumnBuilder,
    StructBuilder,
    TextBuilder,
    TextListBuilder,
)
from topics.arrow.columns.envelope_columns import EnvelopeColumns, HopFilter, KeyRangeFilter
from topics.arrow.columns.filler import ColumnFiller
from topics.arrow.key_scope import KeyScope
from topics.arrow.output_columns import IMAGES, OutputColumns, choose_columns
from topics.arrow.schema_plans import PlanMaker, builder_for
from topics.arrow.scoped_rows import cut_to_range, scoped_shape, with_keyspace_ids
from topics.errors import CorruptRecord, HiddenValue
from topics.reading.row_filters import ReadBeforeHop
from topics.records.envelope_table import EVENT_TYPES, OPS, added_fields
from topics.records.event_decoder import BROKEN
from topics.records.table_shape import TableShape, known_schema, wire_header

_COLUMNS = (
    *("op", "shard", "seq", "timestamp_us", "key", "old_key", "keyspace_id_before"),
    *("keyspace_id_after", "absent", "invalid_dates", "before", "after"),
)
# Texts that take as long as all other columns of a small row together.
PLACES = ("gtid", "token")


class ArrowDecoder:
    """Decodes records of one shard log, in order, or of any shards in any order.

    It cannot be used after an error, because its columns may hold half a row.
    """

    def __init__(
        self,
        output: OutputColumns,
        text_of: Callable[[int], str],
        *,
        shard: str | None = None,
        key_range: KeyRange | None = None,
    ) -> None:
        """`text_of` returns the schema text of an id; rows outside `key_range` are left out.

        Without a `shard` the records are of any shards, and their seqs are not checked.
        """
        self.shard = shard
        self.schema = output.arrow_schema()
        self._builders = {field.name: builder_for(field.type) for field in self.schema}
        columns = EnvelopeColumns()
        added = {field.name for field in added_fields()}
        for name, builder in self._builders.items():
            if name in added:
                columns.added[name] = builder
            elif name not in IMAGES:
                setattr(columns, name, builder)
        self._filler = ColumnFiller(
            shard=shard,
            columns=columns,
            event_types=[name.encode() for name in EVENT_TYPES],
            ops=[name.encode() for name in OPS],
            plan_of=PlanMaker(output, self._builders, text_of).plan_of,
            token_version=TOKEN_VERSION,
            key_range=None if key_range is None else KeyRangeFilter(key_range.contains),
            keys_have_home=output.key_scope is KeyScope.SHARD,
        )

    def begin(self, first_seq: int, late_before_us: int, seen: ReadBeforeHop | None = None) -> None:
        """Expect `first_seq` next; records older than `late_before_us` are late.

        `seen`: what the stream had read before it hopped here without marks; those are dropped.
        """
        filler = self._filler
        filler.seq = first_seq - 1
        filler.late_before_us = late_before_us
        filler.hop_filter = None if seen is None else HopFilter(seen.hop_time_us, seen.was_read)

    @property
    def last_seq(self) -> int:
        """The seq of the last record decoded."""
        return int(self._filler.seq)

    def decode(
        self, records: Sequence[bytes], offsets: Sequence[int] | None = None, table: str = ""
    ) -> pa.RecordBatch:
        """Return the rows of the records, without other tables, other ranges and rows seen before.

        `offsets` and `table` are for errors. CorruptRecord: a record cannot be read. LogGap,
        LogRepeat: its `seq` is not the next one. RowImageMissing: a row lacks what is needed to
        tell whether it lies in the key range. HiddenValue: NULL would stand for an absent column or
        an invalid date, and no column says so.
        """
        try:
            self._filler.fill(
                list(records), list(range(len(records)) if offsets is None else offsets)
            )
            return self._take()
        except HiddenValue as error:
            raise HiddenValue(f"{self._place(table, offsets)}: {error}") from error
        except BROKEN as error:
            raise CorruptRecord(
                f"{self._place(table, offsets)}: the record cannot be read: {error}"
            ) from error

    def _place(self, table: str, offsets: Sequence[int] | None) -> str:
        """Return the place of the record at hand; without offsets that of the last good one."""
        filler = self._filler
        shard = filler.shard.decode("utf-8", "replace") or "unknown"
        place = f"near shard {shard}, seq {filler.seq}"
        if offsets is not None:
            place = f"shard {shard}, offset {filler.offset}"
        return f"{table}, {place}" if table else place

    def _take(self) -> pa.RecordBatch:
        rows = int(self._filler.rows)
        self._filler.rows = 0
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


@dataclass(frozen=True, slots=True)
class _Version:
    """A table version and the decoder of its records."""

    shape: TableShape
    decoder: ArrowDecoder


class TableDecoder:
    """Decodes rows of any table, of any shards and in any order. Not thread-safe."""

    def __init__(
        self,
        text_of: Callable[[int], str],
        key_scope: KeyScope = KeyScope.KEYSPACE,
        more: Sequence[str] = (),
        *,
        columns: Sequence[str] = _COLUMNS,
    ) -> None:
        """`text_of` returns the schema text of an id.

        `key_scope`: that of the source; with SHARD tables and rows have one more column
        (`scoped_rows`). `more`: PLACES, where rows are to name their transactions.
        """
        self._text_of = text_of
        self._columns = ",".join((*columns, *more))
        self._key_scope = key_scope
        self._versions: dict[int, _Version] = {}

    def decode(
        self,
        schema_id: int,
        records: Sequence[bytes],
        ops: pa.Array | Sequence[str] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> pa.RecordBatch:
        """Return one row per record of a table version, in the order of the records.

        Columns: op, shard, seq, timestamp_us, key, old_key (JSON text), keyspace_id_before,
        keyspace_id_after (binary), absent, invalid_dates (JSON text) as in the source, `more` of
        them, and the structs before and after, typed by the version's columns.

        `ops` is column `op` of the same rows: a source with a key range sees an UPDATE across its
        border as an INSERT or a DELETE, which has one image and one key. `offsets`: for errors.

        CorruptRecord: a record cannot be read. UsageError: the schema is not one of rows.
        CannotApply: a row lacks the keyspace id that the key scope needs. HiddenValue as of
        `ArrowDecoder`.
        """
        version = self._version(schema_id)
        header = wire_header(schema_id)
        for record in records:
            if not record.startswith(header):
                raise CorruptRecord(
                    f"a record does not begin with a zero and schema id {schema_id}"
                )
        shape = version.shape
        try:
            batch = version.decoder.decode(records, offsets, f"{shape.database}.{shape.table}")
        except BaseException:
            del self._versions[schema_id]  # its columns may hold half a row
            raise
        if ops is not None:
            seen = pa.array(ops, pa.string()) if isinstance(ops, Sequence) else ops
            batch = cut_to_range(batch, seen.cast(pa.string()))
        if self._key_scope is KeyScope.SHARD:
            batch = with_keyspace_ids(shape, batch)
        return batch

    def shape(self, schema_id: int) -> TableShape:
        """Return the table version of a schema. UsageError when it is not one of rows."""
        return self._version(schema_id).shape

    def _version(self, schema_id: int) -> _Version:
        found = self._versions.get(schema_id)
        if found is None:
            shape = known_schema(self._text_of(schema_id), schema_id, "a shard log").shape
            if shape is None:
                raise UsageError(f"schema {schema_id} describes statements, not rows of a table")
            output = choose_columns(self._columns, shape, schema_id)
            output = replace(output, key_scope=self._key_scope)
            if self._key_scope is KeyScope.SHARD:
                shape = scoped_shape(shape)
            found = _Version(shape, ArrowDecoder(output, self._text_of))
            self._versions[schema_id] = found
        return found
