"""Compares a target with its sources, row by row at one position, under live writes.

The target's snapshot holds its own checkpoints, so it stands exactly at one position of the
sources: its tables, and what waits aside in a merge. The sources' snapshots are later. Rows changed
in between are in the logs with their before images: those are laid over the source snapshots, in
temporary tables on the target's server (`_Window`). Rows are compared as raw bytes, in chunks by
primary key that are read from all servers in step: memory holds one chunk per server.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pymysql

from databases.catalog import BYTE_STRINGS, INTEGERS, TEXTS, unique_keys
from databases.connection import error_code, error_text, server_errors
from databases.internal_tables import INTERNAL_DATABASE, MARKER, create_internal_tables
from databases.row_comparison import Difference, RowComparison, key_text
from databases.sql import beyond, bytes_literal, quoted, rows
from databases.table_cursor import hold_definition
from event_token import ShardName, StreamPosition
from event_token.errors import Halt, Retry, UsageError
from resharding.apply.statements import ReshardTargetTable, StatementBuilder
from resharding.apply.target_session import TargetSession
from resharding.aside import AsideRow, read_aside
from resharding.bookkeeping import ReshardPlan, merged_position, read_checkpoints, write_verified
from resharding.definitions import (
    ReshardTable,
    first_difference,
    read_definitions,
    shown_definition,
    vindex_column,
)
from resharding.errors import DefinitionChanged
from resharding.progress import copies_not_over
from resharding.routing import Route, Routes, Upsert, check_full_image, check_skip
from resharding.servers import ReshardServer, executed_set, open_session
from topics.kafka.client import ClientConfig
from topics.names import ShardTopics
from topics.progress.committed_tail import wait_until_logged
from topics.progress.record import Progress
from topics.reading.planner import ShardRange
from topics.records.event_decoder import EventDecoder
from topics.records.table_shape import SchemaIds, ValueKind
from topics.records.vevent import EventType, Op, Row, Value, VEvent
from topics.schemas import open_schema_ids
from topics.stream.log_reader import ShardLogReader

# Rows held in memory per server.
CHUNK_ROWS: Final = 1_000

_NUMBERS: Final = frozenset((*INTEGERS, "decimal", "year", "bit"))

# Keys changed between the snapshots; with more, the target is too far behind to be compared.
WINDOW_KEYS_MAX: Final = 200_000
_SEND_BYTES: Final = 1024 * 1024
# A server that refuses tables without a primary key, temporary ones too (sql_require_primary_key,
# innodb_force_primary_key). Keys that its collation takes as equal then count as one there.
_KEY_REQUIRED: Final = frozenset({3750, 1173})

_SourceTable = tuple[str, str, str]  # source, database, table

Key = tuple[bytes, ...]  # of a row, as the server prints it
# After which key, and up to and with which one, as literals; () without a bound.
Part = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _TablePlace:
    """A table on a server: a connection that returns raw bytes, and the quoted name there."""

    connection: Any
    name: str


@dataclass(frozen=True, slots=True)
class _RawRow:
    """A row as the server holds it: `values` in the bytes of its own character sets."""

    key: Key
    sharding: Value
    values: tuple[bytes | None, ...]


class _TableReader:
    """Reads the rows of one table for comparison, from any place that has it."""

    def __init__(self, table: ReshardTable, route: Route) -> None:
        """`table`: as sources and targets both define it, with a primary key."""
        self.table = table
        self.route = route
        types = {column.name: column.data_type for column in table.columns}
        self._key_types = [types[name] for name in table.key]
        self._key = [(name, False) for name in table.key]  # read in ascending order
        self._sharding = _exact(route.column, types[route.column])
        column = vindex_column(next(c for c in table.columns if c.name == route.column))
        self._sharding_kind = None if column is None else column.kind
        self._key_expressions = [_exact(name, types[name]) for name in table.key]
        self.names: list[str] = []
        self._values: list[str] = []
        for name, data_type in types.items():
            self._add(name, quoted(name))
            if data_type in {"float", "double"}:
                self._add(name, f"{quoted(name)} + 0.0e0")  # all digits, which the text has not
            if data_type in {"enum", "set"}:
                self._add(name, f"{quoted(name)} + 0")

    def _add(self, name: str, expression: str) -> None:
        self.names.append(name)
        self._values.append(expression)

    def bound(self, places: Iterable[_TablePlace], after: tuple[str, ...]) -> tuple[str, ...]:
        """A key up to which no place has more than CHUNK_ROWS rows; (): all the rest fits."""
        bound: tuple[str, ...] = ()
        order = ", ".join(map(quoted, self.table.key))
        for place in places:
            found = rows(
                place.connection,
                f"SELECT {', '.join(self._key_expressions)} FROM {place.name} "
                f"{self._where((after, bound))} ORDER BY {order} LIMIT 1 OFFSET {CHUNK_ROWS - 1}",
            )
            if found:
                bound = tuple(map(_literal, found[0], self._key_types))
        return bound

    def rows(self, place: _TablePlace, part: Part) -> Iterator[_RawRow]:
        """The rows of a part of the table."""
        names = (*map(quoted, self.table.key), self._sharding, *self._values)
        query = f"SELECT {', '.join(names)} FROM {place.name} {self._where(part)}"
        keys = len(self.table.key)
        for row in rows(place.connection, query):
            yield _RawRow(row[:keys], self._sharding_value(row[keys]), row[keys + 1 :])

    def _sharding_value(self, raw: bytes | None) -> Value:
        if raw is None or self._sharding_kind is ValueKind.BYTES:
            return raw
        return raw.decode() if self._sharding_kind is ValueKind.STRING else int(raw)

    def _where(self, part: Part) -> str:
        after, bound = part
        bounds = (beyond(self._key, after), beyond(self._key, bound, upto=True))
        terms = [f"({condition})" for condition in bounds if condition]
        return f"WHERE {' AND '.join(terms)}" if terms else ""


def give_bytes(connection: Any) -> None:
    """Make a connection return the bytes that the server stores, not Python values."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION character_set_results = NULL")
    connection.use_unicode = False
    connection.decoders = {}


def _exact(name: str, data_type: str) -> str:
    """An expression for a column whose bytes `_literal` and vindexes can use."""
    if data_type in TEXTS:
        return f"CONVERT({quoted(name)} USING utf8mb4)"
    return f"{quoted(name)} + 0" if data_type == "bit" else quoted(name)


def _literal(raw: bytes, data_type: str) -> str:
    if data_type in _NUMBERS:
        return raw.decode()
    literal = bytes_literal(raw)
    return literal if data_type in BYTE_STRINGS else f"_utf8mb4 {literal}"


@dataclass(slots=True)
class _Overlay:
    """Rows of one table of one source: as they were, or the keys of rows that did not exist."""

    name: str
    builder: StatementBuilder


def create_overlay(session: TargetSession, database: str, table: str, name: str) -> str:
    """Create a temporary table like another one, without unique keys; return its quoted name.

    Unique at one time does not mean unique over time, and a primary key takes keys for one that
    its collation takes as equal: rows that an UPDATE has turned from 'n1' to 'N1' have two.
    """
    overlay = f"{INTERNAL_DATABASE}.{quoted(name)}"
    uniques = unique_keys(session.connection, database, table)
    like = f"{quoted(database)}.{quoted(table)}"
    session.execute(f"CREATE TEMPORARY TABLE {overlay} LIKE {like}")
    for index in sorted(uniques.keys() - {"PRIMARY"}):
        session.execute(f"ALTER TABLE {overlay} DROP INDEX {quoted(index)}")
    if not all(part.is_whole for part in uniques["PRIMARY"]):
        return overlay
    key = ", ".join(quoted(str(part.column)) for part in uniques["PRIMARY"])
    try:
        # Parts of the table are looked for by key.
        session.execute(f"ALTER TABLE {overlay} DROP PRIMARY KEY, ADD INDEX ({key})")
    except pymysql.err.MySQLError as error:
        if error_code(error) not in _KEY_REQUIRED:
            raise
    return overlay


class _Window:
    """What all sources changed after the target's position."""

    def __init__(
        self,
        plan: ReshardPlan,
        session: TargetSession,
        config: ClientConfig,
        schema_ids: SchemaIds,
    ) -> None:
        """`session`: the verifier's own session on the target."""
        self._plan = plan
        self._session = session
        self._config = config
        self._codec = EventDecoder(schema_ids)
        self._routes = Routes(plan.tables)
        self._present: dict[_SourceTable, _Overlay] = {}
        self._absent: dict[_SourceTable, _Overlay] = {}
        self._aside: dict[_SourceTable, str] = {}
        self._seen: dict[_SourceTable, set[Any]] = {}
        self._keys = 0

    def read(self, part: ShardRange) -> None:
        """Read what a source changed; only a key's first change has the row as it was before."""
        reader = ShardLogReader(self._config, self._plan.keyspace, part.shard)
        try:
            reader.seek(part.start_offset, part.first_seq)
            for record in reader.read(part):
                self._take(self._codec.decode(record.value, record.shard, record.offset))
        finally:
            reader.close()
        for overlay in (*self._present.values(), *self._absent.values()):
            self._session.run(overlay.builder.take())
        self._session.commit()

    def _take(self, event: VEvent) -> None:
        if event.type is EventType.DDL:
            self._routes.check_statement(event)
        if event.type is EventType.SKIP:
            check_skip(event)
        table = (event.shard, event.database, event.table)
        if event.op is Op.NONE or table[1:] not in self._routes.tables:
            return
        if event.op is Op.READ:  # it changes nothing on its source, but is missing on the target
            raise Retry(
                f"{self._session.server.name}: rows that were copied from {event.shard} are not "
                f"applied yet: let the applier catch up, then verify again"
            )
        for image, overlays in ((event.before, self._present), (event.after, self._absent)):
            if image is not None:
                check_full_image(event, image)
                self._add(event, image, table, overlays)

    def _add(
        self, event: VEvent, image: Row, table: _SourceTable, overlays: dict[_SourceTable, _Overlay]
    ) -> None:
        assert event.shape is not None  # noqa: S101 - rows have a shape
        key = tuple(image[event.shape.columns[i].name] for i in event.shape.primary_key)
        seen = self._seen.setdefault(table, set())
        if key in seen:
            return
        seen.add(key)
        self._keys += 1
        if self._keys > WINDOW_KEYS_MAX:
            raise Retry(
                f"{self._session.server.name}: the sources have changed more than "
                f"{WINDOW_KEYS_MAX} rows since the target's position: let the applier catch up, "
                f"then verify again"
            )
        overlay = overlays.get(table)
        if overlay is None:
            kind = "was" if overlays is self._present else "new"
            overlay = overlays[table] = self._overlay(table, f"{kind}_{len(overlays)}")
        overlay.builder.add(Upsert(table[1], table[2], image), event)
        if overlay.builder.size_bytes >= _SEND_BYTES:
            self._session.run(overlay.builder.take())

    def lay_aside(self, waiting: Iterable[AsideRow]) -> int:
        """Make the rows that wait aside on the target a place per source and table; count them."""
        count = 0
        for row in waiting:
            table = (row.place.source, row.place.database, row.place.table)
            if table not in self._aside:
                name = f"aside_{len(self._aside)}"
                self._aside[table] = create_overlay(
                    self._session, row.place.database, row.place.table, name
                )
            insert = f"INSERT INTO {self._aside[table]} ({row.columns}) VALUES {row.values}"
            self._session.insert(insert, row.error_labels)
            count += 1
        return count

    def aside_places(self, database: str, table: str) -> list[_TablePlace]:
        """Where rows of a table wait aside: a place for each source that has some.

        By then the session must return raw bytes (`give_bytes`).
        """
        return [
            _TablePlace(self._session.connection, name)
            for (_, d, t), name in self._aside.items()
            if (d, t) == (database, table)
        ]

    def _overlay(self, table: _SourceTable, name: str) -> _Overlay:
        _, database, original = table
        column = self._routes.tables[database, original].column
        target = self._session.table(database, original, column)
        stands_at: ReshardTargetTable = replace(target, database=INTERNAL_DATABASE, table=name)
        builder = StatementBuilder(
            lambda _database, _table: stands_at, packet_bytes_max=self._session.packet_bytes_max
        )
        temporary = create_overlay(self._session, database, original, name)
        return _Overlay(temporary, builder)

    def places(
        self, source: str, database: str, table: str
    ) -> tuple[list[_TablePlace], list[_TablePlace]]:
        """Rows as they were, and keys of rows that did not exist yet: no place or one of each.

        By then the session must return raw bytes (`give_bytes`).
        """
        name = (source, database, table)
        was, new = (
            [_TablePlace(self._session.connection, overlays[name].name)] if name in overlays else []
            for overlays in (self._present, self._absent)
        )
        return was, new


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """One target, and its sources by name."""

    plan: ReshardPlan
    target: ReshardServer
    sources: Mapping[str, ReshardServer]
    kafka: ClientConfig
    registry_url: str | None = None


@dataclass(frozen=True, slots=True)
class VerifiedTarget:
    """The result. `rows`: compared; `named`: the first of the rows that differ.

    `aside`: rows among them that another source's row keeps out of the target's tables.
    """

    target: str
    position: StreamPosition
    rows: int
    differing: int
    named: tuple[Difference, ...]
    aside: int = 0


def verify_target(settings: VerifySettings) -> VerifiedTarget:
    """Compare one target with its sources, and store the result on the target.

    Raises Retry while rows are still being copied and when the target or a log is too far behind;
    DefinitionChanged, DoesNotApply and Halt as an
    applier does; ServerLost and ServerRefused.
    """
    try:
        with ExitStack() as stack:
            found = _Comparison(settings, stack).run()
    except pymysql.err.MySQLError as error:
        raise Halt(f"verifying {settings.target.name}: {error_text(error)}") from error
    connection = open_session(settings.target)
    try:
        with server_errors(settings.target, "writing the result on"):
            write_verified(
                connection,
                settings.plan.reshard_id,
                found.position.to_string(),
                time.time_ns() // 1_000,
                found.differing,
            )
    finally:
        connection.close()
    return found


def check_same_definition(database: str, table: str, servers: Mapping[str, Any]) -> None:
    """Compare a table's definition in the open transactions of servers, and keep it until they end.

    Parts are read by the same literals of keys from all of them, which must mean the same there.

    `servers`: connections by name, the target's first. DefinitionChanged, naming a server whose
    table is another one than the target's.
    """
    found: dict[str, bytes] = {}
    for server, connection in servers.items():
        hold_definition(connection, database, table)
        found[server] = shown_definition(connection, database, table)
    target, wanted = next(iter(found.items()))
    for server, definition in found.items():
        if definition != wanted:
            different = first_difference(
                definition.decode("utf-8", "replace"), wanted.decode("utf-8", "replace")
            )
            raise DefinitionChanged(
                f"{target}: table {database}.{table} is not defined as on {server}: {different}. "
                f"Make both the same, then verify again"
            )


class _Comparison:
    """One comparison: snapshots, the window between them, and the walk over the tables."""

    def __init__(self, settings: VerifySettings, stack: ExitStack) -> None:
        self._settings = settings
        self._plan = settings.plan
        self._stack = stack
        self._routes = Routes(settings.plan.tables)
        self._range = ShardName.parse(settings.target.shard).key_range
        self._found = RowComparison()

    def run(self) -> VerifiedTarget:
        schema_ids = open_schema_ids(self._settings.kafka, self._settings.registry_url)
        for name in self._settings.sources:
            self._check_copies(ShardTopics(self._plan.keyspace, name))
        target = self._snapshot(self._settings.target)
        checkpoints = read_checkpoints(target, self._plan.reshard_id)
        position = merged_position(checkpoints, self._plan, self._settings.target.name)
        session = TargetSession(self._settings.target)
        self._stack.callback(session.close)
        window = _Window(self._plan, session, self._settings.kafka, schema_ids)
        # Taken after the target's snapshot: the logs lead from its position to theirs.
        sources = {name: self._snapshot(s) for name, s in self._settings.sources.items()}
        for name, server in self._settings.sources.items():
            progress = self._all_visible(server, schema_ids)
            at = position.shards[name]
            if progress.last_seq > at.seq:
                window.read(
                    ShardRange(name, at.offset, progress.end_offset, at.seq + 1, progress.last_seq)
                )
        aside = window.lay_aside(read_aside(target, self._plan.reshard_id))
        definitions = read_definitions(target, self._routes.databases)
        for connection in (target, session.connection, *sources.values()):
            give_bytes(connection)
        for table in definitions:
            self._compare_table(table, target, sources, window)
        found = self._found
        return VerifiedTarget(
            *(self._settings.target.shard, position, found.rows, found.differing, found.named),
            aside,
        )

    def _check_copies(self, topics: ShardTopics) -> None:
        """Raise Retry while rows are missing from the log: each would be listed as a difference."""
        left = [
            f"{copy.name} ({copy.state.value}, {copy.rows:,} rows so far)"
            for copy in copies_not_over(self._settings.kafka, topics)
            if (copy.database, copy.table) in self._routes.tables
        ]
        if left:
            raise Retry(
                f"shard {topics.shard}: not all rows have been copied into its log: "
                f"{', '.join(left)}. Verify when `shardstream copy status {topics.keyspace}` shows "
                f"them as completed; a failed or paused copy has to be resumed"
            )

    def _snapshot(self, server: ReshardServer) -> Any:
        connection = open_session(server)
        self._stack.callback(connection.close)
        with server_errors(server, "opening a snapshot of"), connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return connection

    def _all_visible(self, server: ReshardServer, schema_ids: SchemaIds) -> Progress:
        """Progress of a source's log once it holds everything that the snapshot shows.

        A transaction committed now follows in the binlog on all that was visible before.
        """
        connection = open_session(server)
        try:
            with server_errors(server, "writing a marker on"):
                create_internal_tables(connection)
                with connection.cursor() as cursor:
                    cursor.execute(
                        f"REPLACE INTO {MARKER} VALUES (%s, %s)",
                        (self._plan.reshard_id, time.time_ns() // 1_000),
                    )
                executed = executed_set(connection, server.flavor)
        finally:
            connection.close()
        topics = ShardTopics(self._plan.keyspace, server.shard)
        return wait_until_logged(self._settings.kafka, topics, schema_ids, executed)

    def _compare_table(
        self,
        table: ReshardTable,
        target: Any,
        sources: Mapping[str, Any],
        window: _Window,
    ) -> None:
        route = self._routes.tables.get((table.database, table.table))
        if route is None:
            raise UsageError(f"{self._settings.target.name}: table {table.name} has no vindex")
        reader = _TableReader(table, route)
        name = f"{quoted(table.database)}.{quoted(table.table)}"
        there = [_TablePlace(target, name), *window.aside_places(table.database, table.table)]
        places = {source: _TablePlace(connection, name) for source, connection in sources.items()}
        check_same_definition(
            table.database,
            table.table,
            {
                self._settings.target.name: target,
                **{self._settings.sources[name].name: sources[name] for name in sources},
            },
        )
        logs = {source: window.places(source, table.database, table.table) for source in sources}
        after: tuple[str, ...] = ()
        while True:
            part = (after, reader.bound([*there, *places.values()], after))
            wanted: dict[Key, list[tuple[str, _RawRow]]] = {}
            for source, place in places.items():
                for row in self._as_was(reader, place, logs[source], part):
                    wanted.setdefault(row.key, []).append((source, row))
            found: dict[Key, list[_RawRow]] = {}
            for place in there:
                for row in reader.rows(place, part):
                    found.setdefault(row.key, []).append(row)
            self._compare(reader, wanted, found)
            _, after = part
            if not after:
                return

    def _as_was(
        self,
        reader: _TableReader,
        place: _TablePlace,
        log: tuple[list[_TablePlace], list[_TablePlace]],
        part: Part,
    ) -> Iterator[_RawRow]:
        """A source's rows of the target's range, as they were at the target's position."""
        was, new = log
        before = [row for overlay in was for row in reader.rows(overlay, part)]
        changed = {row.key for row in before}
        changed |= {row.key for overlay in new for row in reader.rows(overlay, part)}
        kept = (row for row in reader.rows(place, part) if row.key not in changed)
        for row in (*kept, *before):
            try:
                keyspace_id = reader.route.vindex.keyspace_id(row.sharding)
            except UsageError as error:
                raise Halt(
                    f"table {reader.table.name}: a row has no keyspace id: {error}"
                ) from error
            if self._range.contains(keyspace_id):
                yield row

    def _compare(
        self,
        reader: _TableReader,
        wanted: Mapping[Key, list[tuple[str, _RawRow]]],
        found: Mapping[Key, list[_RawRow]],
    ) -> None:
        """Compare rows by key, which several sources may have at the position of a merge."""
        table = reader.table
        for key in dict.fromkeys((*wanted, *found)):
            mine, theirs = wanted.get(key, []), found.get(key, [])
            self._found.rows += len(mine)
            pairs = _take_pairs(mine, theirs)
            text = key_text(table.key, key)
            for source, row, other in pairs:
                values = zip(reader.names, row.values, other.values, strict=True)
                if names := dict.fromkeys(name for name, one, two in values if one != two):
                    self._found.changed(table.name, source, text, names)
            for source, _ in mine:
                self._found.missing(table.name, source, text)
            for _ in theirs:
                self._found.surplus(table.name, self._settings.target.shard, text)


def _take_pairs(
    mine: list[tuple[str, _RawRow]], theirs: list[_RawRow]
) -> list[tuple[str, _RawRow, _RawRow]]:
    """Take the rows of a key that belong together out of both sides' lists.

    Equal ones do, then those of one sharding value, then any.
    """
    if len(mine) == len(theirs) == 1:
        return [(*mine.pop(), theirs.pop())]
    pairs = []
    for belong in (_are_equal, _are_of_one_shard, _are_any):
        for source, row in list(mine):
            other = next((there for there in theirs if belong(row, there)), None)
            if other is not None:
                mine.remove((source, row))
                theirs.remove(other)
                pairs.append((source, row, other))
    return pairs


def _are_equal(one: _RawRow, other: _RawRow) -> bool:
    return one.values == other.values


def _are_of_one_shard(one: _RawRow, other: _RawRow) -> bool:
    return one.sharding == other.sharding


def _are_any(_one: _RawRow, _other: _RawRow) -> bool:
    return True
