"""Compares a target with its sources, row by row at one position, under live writes.

The checkpoints in the target's snapshot say which position it stands at. What the sources have
changed since then is undone from their logs (`window`). Memory holds one chunk per server.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pymysql

from databases.connection import error_text, server_errors
from databases.internal_tables import MARKER, create_internal_tables
from databases.sql import quoted
from event_token import KeyRange, ShardName, StreamPosition
from event_token.errors import Halt, Retry, UsageError
from resharding.apply.routing import Route, Routes
from resharding.apply.target_session import TargetSession
from resharding.bookkeeping import merged_position, read_checkpoints, write_verified
from resharding.log_progress import executed_set, has_reached
from resharding.plan.reshard_plan import ReshardPlan
from resharding.plan.tables import TableDefinition, read_definitions
from resharding.progress import copies_not_over
from resharding.server import ReshardServer, open_session
from resharding.verify.rows import Key, Place, RawRow, TableReader, give_bytes
from resharding.verify.window import Window
from topics.kafka.client import ClientConfig
from topics.kafka.deadline import Deadline
from topics.names import ShardTopics
from topics.progress.committed_tail import last_progress
from topics.progress.record import Progress
from topics.reading.planner import ShardRange
from topics.records.schema_ids import SchemaIds
from topics.schemas.registry import open_schema_ids

# Differing rows that are listed; all are counted.
NAMED_MAX: Final = 100
# A source's log follows its server within a second, more where its producer has to catch up.
LOG_WAIT_S: Final = 120.0
_LOG_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """One target, and its sources by name."""

    plan: ReshardPlan
    target: ReshardServer
    sources: Mapping[str, ReshardServer]
    kafka: ClientConfig
    registry_url: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs; `key` as the server prints it."""

    table: str
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result. `rows`: compared; `named`: the first NAMED_MAX rows that differ."""

    target: str
    position: StreamPosition
    rows: int
    differing: int
    named: tuple[Difference, ...]


def verify_target(settings: VerifySettings) -> Verified:
    """Compare one target with its sources, and store the result on the target.

    Raises Retry while rows are still being copied and when the target or a log is too far behind;
    DefinitionChanged, DoesNotApply and
    Halt as an applier does; ServerLost and ServerRefused.
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


class _Comparison:
    """One comparison: snapshots, the window between them, and the walk over the tables."""

    def __init__(self, settings: VerifySettings, stack: ExitStack) -> None:
        self._settings = settings
        self._plan = settings.plan
        self._stack = stack
        self._routes = Routes(settings.plan.tables)
        self._range: KeyRange = ShardName.parse(settings.target.shard).key_range
        self._rows = 0
        self._differing = 0
        self._named: list[Difference] = []

    def run(self) -> Verified:
        schema_ids = open_schema_ids(self._settings.kafka, self._settings.registry_url)
        for name in self._settings.sources:
            self._check_copies(ShardTopics(self._plan.keyspace, name))
        target = self._snapshot(self._settings.target)
        checkpoints = read_checkpoints(target, self._plan.reshard_id)
        position = merged_position(checkpoints, self._plan, self._settings.target.name)
        session = TargetSession(self._settings.target)
        self._stack.callback(session.close)
        window = Window(self._plan, session, self._settings.kafka, schema_ids)
        # Taken after the target's snapshot: the logs lead from its position to theirs.
        sources = {name: self._snapshot(s) for name, s in self._settings.sources.items()}
        for name, server in self._settings.sources.items():
            progress = self._all_visible(server, schema_ids)
            at = position.shards[name]
            if progress.last_seq > at.seq:
                window.read(
                    ShardRange(name, at.offset, progress.end_offset, at.seq + 1, progress.last_seq)
                )
        definitions = read_definitions(target, self._routes.databases)
        for connection in (target, session.connection, *sources.values()):
            give_bytes(connection)
        for table in definitions:
            self._compare_table(table, target, sources, window)
        return Verified(
            self._settings.target.shard, position, self._rows, self._differing, tuple(self._named)
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
        deadline = Deadline(LOG_WAIT_S)
        while True:
            topics = ShardTopics(self._plan.keyspace, server.shard)
            progress = last_progress(self._settings.kafka, topics, schema_ids)
            if progress is not None and has_reached(progress, executed):
                return progress
            if deadline.passed:
                raise Retry(
                    f"shard {server.shard}: its log has not reached {executed} within "
                    f"{LOG_WAIT_S:g} s: is its producer running?"
                )
            time.sleep(_LOG_POLL_S)

    def _compare_table(
        self,
        table: TableDefinition,
        target: Any,
        sources: Mapping[str, Any],
        window: Window,
    ) -> None:
        route = self._routes.tables.get((table.database, table.table))
        if route is None:
            raise UsageError(f"{self._settings.target.name}: table {table.name} has no vindex")
        reader = TableReader(table, route)
        name = f"{quoted(table.database)}.{quoted(table.table)}"
        there = Place(target, name)
        logs = {source: window.places(source, table.database, table.table) for source in sources}
        places = {source: Place(connection, name) for source, connection in sources.items()}
        after: Key | None = None
        while True:
            bound = reader.bound([there, *places.values()], after)
            wanted: dict[tuple[bytes, ...], RawRow] = {}
            for source, place in places.items():
                for row in self._as_was(reader, place, logs[source], (after, bound), route):
                    if row.key in wanted:
                        self._differs(reader, row.key, "it is on two sources")
                    wanted[row.key] = row
            found = {row.key: row for row in reader.rows(there, after, bound)}
            self._compare(reader, wanted, found)
            if bound is None:
                return
            after = bound

    def _as_was(
        self,
        reader: TableReader,
        place: Place,
        log: tuple[list[Place], list[Place]],
        part: tuple[Key | None, Key | None],
        route: Route,
    ) -> Iterator[RawRow]:
        """A source's rows of the target's range, as they were at the target's position."""
        was, new = log
        before = [row for overlay in was for row in reader.rows(overlay, *part)]
        changed = {row.key for row in before}
        changed |= {row.key for overlay in new for row in reader.rows(overlay, *part)}
        kept = (row for row in reader.rows(place, *part) if row.key not in changed)
        for row in (*kept, *before):
            try:
                keyspace_id = route.vindex.keyspace_id(row.sharding)
            except UsageError as error:
                raise Halt(
                    f"table {reader.table.name}: a row has no keyspace id: {error}"
                ) from error
            if self._range.contains(keyspace_id):
                yield row

    def _compare(
        self,
        reader: TableReader,
        wanted: Mapping[tuple[bytes, ...], RawRow],
        found: Mapping[tuple[bytes, ...], RawRow],
    ) -> None:
        self._rows += len(wanted)
        for key, row in wanted.items():
            other = found.get(key)
            if other is None:
                self._differs(reader, key, "it is missing on the target")
            elif other.values != row.values:
                pairs = zip(reader.names, row.values, other.values, strict=True)
                names = dict.fromkeys(name for name, mine, theirs in pairs if mine != theirs)
                self._differs(reader, key, f"it differs in {', '.join(names)}")
        for key in found.keys() - wanted.keys():
            self._differs(reader, key, "it is on the target alone")

    def _differs(self, reader: TableReader, key: tuple[bytes, ...], what: str) -> None:
        self._differing += 1
        if len(self._named) < NAMED_MAX:
            names = zip(reader.table.key, key, strict=True)
            shown = ", ".join(f"{name}={raw.decode(errors='replace')}" for name, raw in names)
            self._named.append(Difference(reader.table.name, shown, what))
