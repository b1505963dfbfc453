"""Reads a shard's tables as its producer's copies do: the same images, filters and types."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa

from databases.errors import ServerLost
from databases.sql import quoted, rows
from event_token import GtidSet
from event_token.errors import UsageError
from producers.copy.chunk import ChunkRows
from producers.copy.chunk_rows import ChunkConnection
from producers.copy.chunk_sql import chunk_select
from producers.copy.definition import TableDefinition, read_definition
from producers.copy.errors import ChunkTooLarge, refuse_left_out
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.tables.key_watch import KeyWatch
from producers.filters.sharding_columns import sharding_columns
from producers.filters.table_filters import TableFilters
from producers.preflight.hidden_types import server_types
from producers.preflight.server_columns import ServerCatalog
from producers.replication.stream import server_errors
from producers.settings import ServerSettings, ShardProducerSettings
from resharding.log_progress import has_reached
from shardstream.commands.sinks.verify.key_literals import key_literal
from shardstream.commands.sinks.verify.snapshots import consistent_snapshot
from spark_consumers.decoding.record_decoder import RecordDecoder
from spark_consumers.second_database.verify.sources import Key, Name, Part, Snapshot
from topics.kafka.client import RECORD_BYTES_MAX
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.records.schema_ids import SchemaIds
from topics.records.wire import schema_id_of

# Rows that are in memory at once, as record and as Arrow; `CHUNK_BYTES_MAX` bounds their bytes.
PART_ROWS: Final = 5_000
# Servers limit the memory in which they plan a condition of many keys.
KEYS_AT_ONCE: Final = 200


class ShardReader:
    """One shard; implements `ShardSource`. Not thread-safe."""

    def __init__(self, settings: ShardProducerSettings, schema_ids: SchemaIds) -> None:
        """Connect to the first of the shard's servers that answers; ServerRefused, ServerLost."""
        self._settings = settings
        self._schema_ids = schema_ids
        self._chunks = _first_that_answers(settings)
        self._server = self._chunks.server
        self._texts: list[str] = []
        self._records: list[bytes] = []
        self.decoder = RecordDecoder(self._texts.__getitem__)
        self._writer = self._new_decoder()

    @property
    def shard(self) -> str:
        """The shard's name."""
        return self._settings.shard

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        self._chunks.close()

    def estimated_rows(self, table: Name) -> int | None:
        """Return the server's estimate."""
        with server_errors(self._server, "counting rows of"):
            found = rows(
                self._chunks.connection,
                "SELECT table_rows FROM information_schema.tables "
                "WHERE table_schema = %s AND table_name = %s",
                table,
            )
        return int(found[0][0] or 0) if found else None

    def part(self, table: Name, after: tuple[str, ...]) -> Part:
        """Return up to PART_ROWS rows after a key; fewer where they are large."""
        rows_max = PART_ROWS
        while True:
            with server_errors(self._server, f"reading {'.'.join(table)} from"):
                definition = self._definition(table)
                statement = chunk_select(definition, after, rows_max)
                try:
                    found = self._chunks.read(definition, statement)
                except ChunkTooLarge as error:
                    rows_max = max(1, error.rows // 2)
                    self._reconnect()  # half a result is under way
                    continue
            upto = found.pieces[-1].last_key if found.rows == rows_max else ()
            return Part(self._routed(definition, [found]), upto)

    def rows_of(self, table: Name, keys: Sequence[Key]) -> Snapshot:
        """Return the rows of these keys as of one snapshot."""
        connection = self._chunks.connection
        with (
            server_errors(self._server, f"reading {'.'.join(table)} from"),
            consistent_snapshot(connection, self._settings.flavor) as place,
        ):
            definition = self._definition(table)
            found = [
                self._chunks.read(
                    definition,
                    chunk_select(
                        definition,
                        (),
                        None,
                        where=_among(definition, keys[begin : begin + KEYS_AT_ONCE]),
                    ),
                )
                for begin in range(0, len(keys), KEYS_AT_ONCE)
            ]
        return Snapshot(self._routed(definition, found), place.seen, place.executed)

    def logged_seq(self, executed: GtidSet) -> int | None:
        """Return the last seq of the log if it holds everything of `executed`."""
        settings = self._settings
        topics = ShardTopics(settings.keyspace, settings.shard)
        progress = last_progress(settings.kafka, topics, self._schema_ids)
        if progress is None or not has_reached(progress, executed):
            return None
        return progress.last_seq

    def _reconnect(self) -> None:
        self._chunks.close()
        self._chunks = ChunkConnection(self._server)

    def _definition(self, table: Name) -> TableDefinition:
        settings = self._settings
        refuse_left_out(settings.filters, *table)
        return read_definition(
            *(self._chunks.connection, settings.flavor, *table, settings.text_as_bytes),
            typed_columns=settings.typed_columns,
        )

    def _routed(self, definition: TableDefinition, found: Sequence[ChunkRows]) -> pa.Table:
        """Return the rows as records, with the columns that `changes_of` takes."""
        writer = self._writer.copy_writer
        name = (definition.database, definition.table)
        for piece in (piece for each in found for piece in each.pieces):
            watch = KeyWatch(*name, writer.next_seq)
            writer.copy_rows(definition.plan, piece.images, watch, 0)
            writer.end(*name, [])
        self._writer.take_batch()
        records, self._records[:] = list(self._records), []
        count = len(records)
        schema_ids = [schema_id_of(each, self.shard) for each in records]
        return pa.table(
            {
                "type": ["ROW"] * count,
                "op": ["READ"] * count,
                "shard": [self.shard] * count,
                "seq": pa.array(range(count), pa.int64()),
                "timestamp_us": pa.array([0] * count, pa.int64()),
                "schema_id": pa.array(schema_ids, pa.int64()),
                "record": pa.array(records, pa.binary()),
                # All rows belong to one task; that they have a key is all that counts.
                "key_hash": pa.array([0] * count, pa.int64()),
                "old_key_hash": pa.nulls(count, pa.int64()),
                "late": pa.array([False] * count, pa.bool_()),
                "possible_duplicate": pa.array([False] * count, pa.bool_()),
            }
        )

    def _new_decoder(self) -> Decoder:
        """Return a decoder as the producer's, whose records stay here."""
        settings = self._settings
        vindexes = sharding_columns(settings.vindexes)
        rules = TableFilters(settings.filters, vindexes) if settings.filters else None
        connection = self._chunks.connection
        options = DecoderOptions(
            topic=f"{settings.keyspace}.{settings.shard}",
            keyspace=settings.keyspace,
            shard=settings.shard,
            flavor=settings.flavor,
            position="",
            next_seq=1,
            last_timestamp_us=0,
            last_cell_us=-1,
            produce=self._take,
            record_bytes_max=RECORD_BYTES_MAX,
            on_full=_nothing,
            schema_id=self._register,
            max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
            now_us=lambda: time.time_ns() // 1000,
            on_notice=_ignore,
            vindexes=vindexes,
            rules=rules,
            text_as_bytes=settings.text_as_bytes,
            hidden_types=server_types(settings, self._server, connection, _ignore),
            catalog=ServerCatalog(settings.flavor, self._server, connection, _ignore),
        )
        return Decoder(options)

    def _take(self, _topic: str, value: bytes, *_more: object) -> None:
        self._records.append(value)

    def _register(self, text: str) -> int:
        """These ids are this reader's: nothing is written to Kafka."""
        if text not in self._texts:
            self._texts.append(text)
        return self._texts.index(text)


def _first_that_answers(settings: ShardProducerSettings) -> ChunkConnection:
    servers: list[ServerSettings] = [server for server in settings.servers if server.read]
    for server in servers[:-1]:
        with suppress(ServerLost):
            return ChunkConnection(server)
    return ChunkConnection(servers[-1])


def _among(definition: TableDefinition, keys: Sequence[Key]) -> str:
    """Return the condition that a row has one of these keys."""
    names = [quoted(column.name) for column in definition.key]
    if any(len(key) != len(names) for key in keys):
        raise UsageError(
            f"{definition.database}.{definition.table}: its primary key has {len(names)} columns "
            f"on the source, and another number in the target"
        )
    alternatives = (
        " AND ".join(f"{name} = {key_literal(v)}" for name, v in zip(names, key, strict=True))
        for key in keys
    )
    return " OR ".join(f"({each})" for each in alternatives) or "FALSE"


def _nothing() -> None:
    """A list never is full."""


def _ignore(_notice: str) -> None:
    """Its producer says the same."""
