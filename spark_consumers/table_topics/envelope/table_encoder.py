"""Encodes the changes of one table version: decoded rows in, Kafka messages out."""

import json
from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from event_token.errors import UsageError
from spark_consumers.table_topics.envelope.avro_bytes import AvroBytes
from spark_consumers.table_topics.envelope.avro_schema import avro_schema
from spark_consumers.table_topics.envelope.bodies import (
    Body,
    Changes,
    EnvelopeBody,
    FlatBody,
    envelope_schema,
    flat_schema,
)
from spark_consumers.table_topics.envelope.codec import Codec
from spark_consumers.table_topics.envelope.connect_schema import ConnectSchema
from spark_consumers.table_topics.envelope.headers import HeaderText
from spark_consumers.table_topics.envelope.json_text import JsonText
from spark_consumers.table_topics.envelope.messages import MESSAGES, layout_of
from spark_consumers.table_topics.envelope.options import EnvelopeOptions
from spark_consumers.table_topics.envelope.rows import RowColumns
from spark_consumers.table_topics.envelope.source_block import constants_of
from spark_consumers.table_topics.errors import PartialRow
from topics.records.table_shape import TableShape

# A batch is encoded in pieces, so that no column of messages exceeds the 2 GB of an Arrow array:
# values grow in JSON, and a schema of 10 kB may come with each message.
PIECE_ROWS_MAX: Final = 16_384
PIECE_BYTES_MAX: Final = 64 * 1024 * 1024

_HEADERS: Final = HeaderText()

# Registers the text of a schema under a subject and returns its id.
Register = Callable[[str, str], int]


class TableEncoder:
    """The messages of one table version. UsageError if the table cannot have a topic."""

    def __init__(
        self, shape: TableShape, options: EnvelopeOptions, register: Register | None = None
    ) -> None:
        """`register`: registers the schemas of the Avro formats, which need it."""
        self._table = f"{shape.database}.{shape.table}"
        self._columns = RowColumns(shape, options)
        self.topic = self._columns.topic
        self._tombstones = options.tombstones
        schema = (flat_schema if options.format.is_flat else envelope_schema)(self._columns)
        self._codec: Codec = (
            AvroBytes(self._registered(schema, register))
            if options.format.is_avro
            else JsonText(schemas=options.schemas)
        )
        self._body: Body = (
            FlatBody(schema, self._codec)
            if options.format.is_flat
            else EnvelopeBody(schema, constants_of(options, shape), self._codec)
        )

    def _registered(self, value: ConnectSchema, register: Register | None) -> dict[str, int]:
        if register is None:
            raise UsageError(f"{self.topic}: the Avro formats need a schema registry")
        return {
            schema.name or "": register(f"{self.topic}-{part}", json.dumps(avro_schema(schema)))
            for part, schema in (("key", self._columns.key), ("value", value))
        }

    def encode(self, rows: pa.RecordBatch, processed_us: int) -> Iterator[pa.RecordBatch]:
        """Return the messages of decoded rows, in the order of the rows and in pieces.

        `rows`: columns of `RecordDecoder.decode`, all of this table version. `processed_us`: the
        envelope's `ts_us`. The batches have the schema `MESSAGES`. Raises PartialRow on a row image
        that lacks columns, ValueDoesNotFit on a value that the format cannot represent.
        """
        for first, piece in _pieces(rows, 0):
            yield self._encode_piece(piece, first, processed_us)

    def _encode_piece(self, rows: pa.RecordBatch, first: int, processed_us: int) -> pa.RecordBatch:
        self._check_whole(rows)
        layout = layout_of(rows, tombstones=self._tombstones)
        before = self._columns.convert(rows["before"])
        after = self._columns.convert(rows["after"])
        body = self._body.encode(Changes(rows, before, after, layout, processed_us))
        value = self._codec.message(self._body.schema, body)
        key = self._columns.keys(self._codec, after)
        nothing = pa.scalar(None, pa.binary())
        old_header = new_header = pa.nulls(len(layout.row), pa.binary())
        if not layout.is_plain:
            old_key = self._columns.keys(self._codec, before)
            key = pc.if_else(pa.array(layout.of_old_key), layout.place(old_key), layout.place(key))
            value = pc.if_else(pa.array(layout.is_tombstone), nothing, value)
            if layout.moved_to.any():
                texts = self._header_texts(before), self._header_texts(after)
                old_header = pc.if_else(pa.array(layout.moved_to), layout.place(texts[0]), nothing)
                new_header = pc.if_else(
                    pa.array(layout.moved_from), layout.place(texts[1]), nothing
                )
        return pa.RecordBatch.from_arrays(
            [
                pa.array(layout.row + first),
                self._codec.message(self._columns.key, key),
                value,
                layout.place(pc.divide(rows["timestamp_us"], 1000)),
                old_header,
                new_header,
            ],
            schema=MESSAGES,
        )

    def _header_texts(self, columns: list[pa.Array]) -> pa.Array:
        return self._columns.keys(_HEADERS, columns).cast(pa.binary())

    def _check_whole(self, rows: pa.RecordBatch) -> None:
        absent = rows["absent"]
        if absent.null_count == len(absent):
            return
        i = pc.index(absent.is_valid(), value=True).as_py()
        raise PartialRow(
            f"shard {rows['shard'][i]}, seq {rows['seq'][i]} (GTID {rows['gtid'][i]}): a row of "
            f"{self._table} lacks columns ({absent[i]}), and a message has the whole row: set "
            f"binlog_row_image=FULL on the server, copy the table again, and begin new topics "
            f"behind it (another --prefix and checkpoint, --from copy), or leave the table out"
        )


def _pieces(rows: pa.RecordBatch, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Halve a batch until its pieces are small; each comes with the index of its first row."""
    count = len(rows)
    if count <= 1 or (count <= PIECE_ROWS_MAX and rows.nbytes <= PIECE_BYTES_MAX):
        if count:
            yield first, rows
        return
    half = count // 2
    yield from _pieces(rows.slice(0, half), first)
    yield from _pieces(rows.slice(half), first + half)
