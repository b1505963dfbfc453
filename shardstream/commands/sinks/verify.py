"""Runs `shardstream database verify`, and prints what it found.

Tables of shards are read as their producers' copies do: the same images, filters and types.
"""

import dataclasses
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from databases.catalog import estimated_rows
from databases.errors import ServerLost, TableChanged
from databases.server_facts import (
    SHOW_PLACE,
    START_SNAPSHOT,
    facts_of,
    mariadb_executed,
    snapshot_place,
)
from databases.sql import quoted, rows, value_literal
from databases.table_cursor import TableCursor
from event_token import Flavor, GtidSet, KeyRange, parse_gtid_set
from event_token.errors import Retry, UsageError
from producers.copy.chunk import ChunkConnection, ChunkRows, TablePart, chunk_select
from producers.copy.definition import (
    ChunkTooLarge,
    TableDefinition,
    held_definition,
    refuse_left_out,
)
from producers.copy.part import read_part
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.tables.plan import KeyWatch
from producers.filters.binding import TableFilters, sharding_columns
from producers.replication.stream import server_errors
from producers.servers.server_catalog import ServerCatalog
from producers.settings import ServerSettings, ShardProducerSettings
from shardstream.settings.model import Settings
from shardstream.settings.producer_settings import shard_producer_settings
from sinks.database.catalog import FOLLOWING
from sinks.database.compared_table import Key, Name, ShardPart, ShardSnapshot
from sinks.database.verification import (
    VerifiedTable,
    VerifyProgress,
    VerifyTarget,
    verify_database,
)
from topics.arrow.decoders import TableDecoder
from topics.names import ShardTopics
from topics.progress.committed_tail import wait_until_logged
from topics.records.table_shape import SchemaIds, schema_id_of
from topics.schemas import open_schema_ids
from topics.start.positions import known_topology

# The thread behind each GTID of @@gtid_owned.
_OWNER: Final = re.compile(r"#\d+")


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """A snapshot shows all of `seen`, and nothing that `executed` lacks."""

    seen: GtidSet
    executed: GtidSet


@contextmanager
def consistent_snapshot(connection: Any, flavor: Flavor) -> Iterator[SnapshotPlace]:
    """Read in one snapshot. Retry if it is unknown which transactions it shows."""
    snapshot = _mysql_snapshot if flavor is Flavor.MYSQL else _mariadb_snapshot
    with snapshot(connection) as place:
        yield place


@contextmanager
def _mysql_snapshot(connection: Any) -> Iterator[SnapshotPlace]:
    """Between two executed sets.

    A transaction is visible a moment before it is in the executed set: until then it is owned. The
    owned ones are read first, for they move from there to the executed ones.
    """
    facts = facts_of(Flavor.MYSQL)
    seen = facts.moment(connection).executed
    rows(connection, START_SNAPSHOT)
    try:
        [(owned,)] = rows(connection, "SELECT @@GLOBAL.gtid_owned")
        executed = parse_gtid_set(facts.moment(connection).executed, Flavor.MYSQL)
        for text in _OWNER.sub("", str(owned).replace("\n", ",")).split(","):
            if text.strip():
                executed = executed.union(parse_gtid_set(text.strip(), Flavor.MYSQL))
        yield SnapshotPlace(parse_gtid_set(seen, Flavor.MYSQL), executed)
    finally:
        rows(connection, "COMMIT")


@contextmanager
def _mariadb_snapshot(connection: Any) -> Iterator[SnapshotPlace]:
    """At the place in the binlog that the snapshot itself reports.

    What came with a backup, and was applied before, is in no binlog.
    """
    [(applied,)] = rows(connection, "SELECT @@GLOBAL.gtid_slave_pos")
    rows(connection, START_SNAPSHOT)
    try:
        place = snapshot_place(rows(connection, SHOW_PLACE))
        [(position,)] = rows(connection, "SELECT BINLOG_GTID_POS(%s, %s)", place)
        if position is None:
            raise Retry(f"the binlog {place[0]} was purged during a snapshot at {place[1]}")
        shown = mariadb_executed(applied, position)
        yield SnapshotPlace(shown, shown)
        if snapshot_place(rows(connection, SHOW_PLACE)) != place:
            raise Retry("the snapshot's position changed between two reads")
    finally:
        rows(connection, "COMMIT")


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
        self.decoder = TableDecoder(self._texts.__getitem__)
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
            return estimated_rows(self._chunks.connection, *table)

    def part(self, table: Name, after: TableCursor | None) -> ShardPart:
        """Return up to PART_ROWS rows after a key, fewer where they are large; TableChanged."""
        refuse_left_out(self._settings.filters, *table)
        rows_max = PART_ROWS
        while True:
            with server_errors(self._server, f"reading {'.'.join(table)} from"):
                try:
                    part = self._part(table, after, rows_max)
                except ChunkTooLarge as error:
                    rows_max = max(1, error.rows // 2)
                    self._reconnect()  # half a result is under way
                    continue
            upto = None
            if not part.is_last:
                identity = part.identity if after is None else after.identity
                last_key = part.rows.pieces[-1].last_key
                upto = TableCursor(last_key, part.definition.fingerprint, identity)
            return ShardPart(self._routed(part.definition, [part.rows]), upto)

    def _part(self, table: Name, after: TableCursor | None, rows_max: int) -> TablePart:
        chunks = self._chunks
        key = () if after is None else after.after

        def read(definition: TableDefinition) -> tuple[ChunkRows, bool]:
            found = chunks.read(definition, chunk_select(definition, key, rows_max))
            return found, found.rows < rows_max

        rows(chunks.connection, "START TRANSACTION READ ONLY")
        try:
            part = read_part(chunks, self._settings, table, after, read, is_resumed=after is None)
        except TableChanged:
            rows(chunks.connection, "COMMIT")
            raise
        rows(chunks.connection, "COMMIT")
        return part

    def rows_of(self, table: Name, keys: Sequence[Key]) -> ShardSnapshot:
        """Return the rows of these keys as of one snapshot."""
        connection = self._chunks.connection
        with (
            server_errors(self._server, f"reading {'.'.join(table)} from"),
            consistent_snapshot(connection, self._settings.flavor) as place,
        ):
            refuse_left_out(self._settings.filters, *table)
            definition = held_definition(connection, self._settings, *table)
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
        return ShardSnapshot(self._routed(definition, found), place.seen, place.executed)

    def logged_seq(self, executed: GtidSet, wait_s: float) -> int:
        """Return a seq up to which the log holds `executed`; Retry if it does not in time."""
        settings = self._settings
        topics = ShardTopics(settings.keyspace, settings.shard)
        return wait_until_logged(
            settings.kafka, topics, self._schema_ids, executed, wait_s
        ).last_seq

    def _reconnect(self) -> None:
        self._chunks.close()
        self._chunks = ChunkConnection(self._server)

    def _routed(self, definition: TableDefinition, found: Sequence[ChunkRows]) -> pa.Table:
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
            record_bytes_max=settings.kafka.record_bytes_max,
            on_full=_nothing,
            schema_id=self._register,
            max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
            now_us=lambda: time.time_ns() // 1000,
            on_notice=_ignore,
            vindexes=vindexes,
            rules=rules,
            text_as_bytes=settings.text_as_bytes,
            catalog=ServerCatalog(
                settings.flavor, settings.typed_columns, self._server, connection, _ignore
            ),
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
    names = [quoted(column.name) for column in definition.key]
    if any(len(key) != len(names) for key in keys):
        raise UsageError(
            f"{definition.database}.{definition.table}: its primary key has {len(names)} columns "
            f"on the source, and another number in the target"
        )
    alternatives = (
        " AND ".join(f"{name} = {value_literal(v)}" for name, v in zip(names, key, strict=True))
        for key in keys
    )
    return " OR ".join(f"({each})" for each in alternatives) or "FALSE"


def _nothing() -> None:
    """A list never is full."""


def _ignore(_notice: str) -> None:
    """Its producer says the same."""


def run_verify(
    settings: Settings,
    keyspace: str,
    target: VerifyTarget,
    tables: Sequence[Name],
    *,
    as_json: bool,
) -> bool:
    """Compare table by table and print the results; True if no row differs."""
    clean = True
    with ExitStack() as opened:
        sources = _sources(settings, keyspace, target.key_range, opened)
        on_progress = opened.enter_context(_progress_bar(as_json=as_json))
        for found in verify_database(target, sources, tables, on_progress):
            _print_table(found, as_json=as_json)
            clean = clean and found.differing == 0
    return clean


def _sources(
    settings: Settings, keyspace: str, key_range: KeyRange, opened: ExitStack
) -> Sequence[ShardReader]:
    topology = known_topology(settings.kafka_client(), keyspace)
    schema_ids = open_schema_ids(settings.kafka_client(), settings.kafka.schema_registry_url)
    found = []
    for shard in topology.shards_for(key_range):
        producer = shard_producer_settings(settings, keyspace, shard)
        producer = dataclasses.replace(producer, vindexes=topology.vindexes)
        found.append(opened.enter_context(closing(ShardReader(producer, schema_ids))))
    return found


@contextmanager
def _progress_bar(*, as_json: bool) -> Iterator[Callable[[VerifyProgress], None] | None]:
    """A bar per table on a terminal's standard error, else nothing."""
    console = Console(stderr=True)
    if as_json or not console.is_terminal:
        yield None
        return
    shown = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[counts]}"))
    with Progress(*shown, TimeRemainingColumn(), console=console) as progress:
        bars: dict[str, TaskID] = {}

        def show(now: VerifyProgress) -> None:
            counts = f"{now.rows:,} rows, {now.differing:,} differ"
            total = max(now.rows, now.rows_estimated)
            if now.table not in bars:
                bars[now.table] = progress.add_task(now.table, total=total, counts=counts)
            progress.update(bars[now.table], completed=now.rows, total=total, counts=counts)

        yield show


def _print_table(found: VerifiedTable, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found)) + "\n")
        sys.stdout.flush()
        return
    moment = datetime.fromtimestamp(found.frontier_us / 1e6, tz=UTC)
    at = moment.isoformat(timespec="milliseconds")
    lines = [f"{found.table}: {found.rows} rows, {found.differing} differ (at {at})"]
    lines += [f"  shard {each.shard}, {each.key}: {each.what}" for each in found.named]
    if found.differing > len(found.named):
        lines.append(f"  and {found.differing - len(found.named)} more")
    if not found.is_whole:
        lines.append("  stopped here: copy the table again")
    if found.changing:
        lines.append(f"  {found.changing} rows changed all the time and were not compared")
    if found.differing and found.state == FOLLOWING:
        lines.append(
            "  no copy has completed it: rows that have not changed since the start are missing"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
