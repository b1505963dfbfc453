"""Decodes records that have left their log, as a sink's tasks get them: by table version.

A task gets the rows of its keys, of all shards and tables, with the source column `record`. Each
table version has columns of its own, so a version that appears while a query runs needs no restart.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from event_token.errors import UsageError
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.output_columns import choose_columns
from spark_consumers.decoding.record_batches import BatchDecoder
from spark_consumers.decoding.scoped_rows import scoped_shape, with_keyspace_ids
from spark_consumers.decoding.seen_rows import as_seen
from topics.errors import CorruptRecord
from topics.records.table_shape import TableShape, shape_of
from topics.records.wire import wire_header

_COLUMNS = (
    *("op", "shard", "seq", "timestamp_us", "key", "old_key", "keyspace_id_before"),
    *("keyspace_id_after", "absent", "off_calendar", "before", "after"),
)
# Texts that take as long as all other columns of a small row together.
PLACES = ("gtid", "token")


@dataclass(frozen=True, slots=True)
class _Version:
    """A table version and the decoder of its records."""

    shape: TableShape
    decoder: BatchDecoder


class RecordDecoder:
    """Decodes rows of any table, of any shards and in any order. Not thread-safe."""

    def __init__(
        self,
        text_of: Callable[[int], str],
        key_scope: KeyScope = KeyScope.KEYSPACE,
        more: Sequence[str] = (),
    ) -> None:
        """`text_of` returns the schema text of an id.

        `key_scope`: that of the source; with SHARD tables and rows have a column more
        (`scoped_rows`). `more`: PLACES, where rows are to tell their transactions.
        """
        self._text_of = text_of
        self._columns = ",".join((*_COLUMNS, *more))
        self._key_scope = key_scope
        self._versions: dict[int, _Version] = {}

    def decode(
        self,
        schema_id: int,
        records: Sequence[bytes],
        ops: pa.Array | Sequence[str] | None = None,
    ) -> pa.RecordBatch:
        """Return one row per record of a table version, in the order of the records.

        Columns: op, shard, seq, timestamp_us, key, old_key (JSON text), keyspace_id_before,
        keyspace_id_after (binary), absent, off_calendar (JSON text) as in the source, `more` of
        them, and the structs before and after, typed by the version's columns.

        `ops` is column `op` of the same rows: a source with a key range sees an UPDATE across its
        border as an INSERT or a DELETE, which has one image and one key.

        CorruptRecord: a record cannot be read. UsageError: the schema is not one of rows.
        CannotApply: a row lacks the keyspace id that the key scope needs.
        """
        version = self._version(schema_id)
        loop = version.decoder.loop
        header = wire_header(schema_id)
        for record in records:
            if not record.startswith(header):
                raise CorruptRecord(
                    f"a record does not begin with a zero and schema id {schema_id}"
                )
        try:
            batch = version.decoder.decode(records, range(len(records)))
        except (IndexError, ValueError, OverflowError) as error:
            # Its columns may hold half a row.
            del self._versions[schema_id]
            raise CorruptRecord(
                f"{version.shape.database}.{version.shape.table}, near shard "
                f"{loop.shard.decode('utf-8', 'replace') or 'unknown'}, seq {loop.seq}: the record "
                f"cannot be read: {error}"
            ) from error
        if ops is not None:
            seen = pa.array(ops, pa.string()) if isinstance(ops, Sequence) else ops
            batch = as_seen(batch, seen.cast(pa.string()))
        if self._key_scope is KeyScope.SHARD:
            batch = with_keyspace_ids(version.shape, batch)
        return batch

    def shape(self, schema_id: int) -> TableShape:
        """Return the table version of a schema. UsageError when it is not one of rows."""
        return self._version(schema_id).shape

    def _version(self, schema_id: int) -> _Version:
        found = self._versions.get(schema_id)
        if found is None:
            shape = shape_of(json.loads(self._text_of(schema_id)))
            if shape is None:
                raise UsageError(f"schema {schema_id} describes statements, not rows of a table")
            output = choose_columns(self._columns, shape, schema_id)
            output = replace(output, key_scope=self._key_scope)
            if self._key_scope is KeyScope.SHARD:
                shape = scoped_shape(shape)
            found = _Version(shape, BatchDecoder(output, self._text_of, shard=None))
            self._versions[schema_id] = found
        return found
