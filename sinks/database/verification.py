"""Compares tables of a second database with their sources, row by row, under live writes.

Tables are read from the sources in parts, staged as the writer stages them and compared at once.
Rows that seem to differ are looked at again: they are read from all shards in one snapshot each,
and compared once the target's position contains everything that the snapshots show. A row of the
target that has changed since then has a token that a snapshot does not contain, and waits for the
next round. Sources are only read, and never stopped.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection

from databases.errors import TableChanged
from databases.row_comparison import Difference, RowComparison, key_text
from databases.table_cursor import TableCursor
from event_token import EventToken, GtidSet, KeyRange, ShardName
from event_token.errors import Retry, UsageError
from sinks.database.catalog import LEFT, LOADING, FollowerCatalog, KnownTarget
from sinks.database.compared_table import (
    ComparedPair,
    ComparedTable,
    Key,
    LiveRow,
    Name,
    ShardPart,
    ShardSnapshot,
    ShardSource,
)
from sinks.database.dialect import TargetTable
from sinks.database.urls import dialect_of
from sinks.resume import HeldBatch
from topics.arrow.key_scope import KeyScope
from topics.kafka.client import Deadline
from topics.records.table_shape import ValueKind

# A query applies a batch every second or two. However far it has to go, it is waited for as long as
# it moves: this is how long it may stand still, and how long a log may be behind.
WAIT_S_MAX = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class VerifyTarget:
    """A second database. `replaces_nul`, `key_range`: those of its query."""

    url: str
    follower: str
    replaces_nul: bool = False
    key_range: KeyRange = field(default_factory=lambda: KeyRange.parse("-"))
    wait_s: float = WAIT_S_MAX


class ComparedTarget:
    """The target, and what of it all tables share."""

    def __init__(self, target: VerifyTarget) -> None:
        """Nothing is connected yet. UsageError: the URL is wrong."""
        self._target = target
        self._dialect = dialect_of(target.url, replaces_nul=target.replaces_nul)
        self._catalog = FollowerCatalog(self._dialect, target.follower)
        self._engine = self._dialect.open_engine()
        digest = hashlib.sha256(target.follower.encode()).hexdigest()[:16]
        self._prefix = f"verify_{digest}_"
        self._soft = False

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction; the database's errors are translated."""
        with self._dialect.errors(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """One comparison at a time; it drops what one that was killed has left."""
        try:
            with self._dialect.errors(), self._engine.connect() as connection:
                if not self._dialect.claim(connection, f"verify {self._target.follower}"):
                    raise Retry(
                        f"{self._catalog.where}: another verify runs; wait until it has ended"
                    )
                connection.commit()
                self._drop_leftovers()
                yield
                self._drop_leftovers()
        finally:
            self._engine.dispose()

    def _drop_leftovers(self) -> None:
        with self.transaction() as connection:
            for name in self._dialect.stages(connection, self._prefix):
                self._dialect.drop_stage(connection, name)

    def chosen(self, tables: Sequence[Name]) -> dict[Name, KnownTarget]:
        """Return the follower's tables, or some. UsageError, and Retry while a copy runs."""
        with self.transaction() as connection:
            options = self._catalog.options(connection)
            if options is None:
                raise UsageError(f"{self._catalog.where} has not been begun: nothing to verify")
            if options.get("key_scope", KeyScope.KEYSPACE) != KeyScope.KEYSPACE:
                raise UsageError(
                    f"{self._catalog.where} was begun with --key-scope {options['key_scope']}: "
                    f"verify compares tables whose keys are those of the sources"
                )
            self._soft = options["deletes"] == "soft"
            known = self._catalog.tables(connection)
        missing = sorted(set(tables) - known.keys())
        if missing:
            raise UsageError(
                f"{self._catalog.where} has no table {'.'.join(missing[0])}: it follows "
                f"{', '.join(sorted('.'.join(name) for name in known)) or 'none yet'}"
            )
        left = {name for name, each in known.items() if each.state == LEFT}
        found = {name: known[name] for name in tables or known.keys() - left}
        if left & found.keys():
            raise UsageError(
                f"{self._catalog.where} does not follow {'.'.join(min(left & found.keys()))} any "
                f"more (--table of its query): verify the others"
            )
        loading = sorted(".".join(name) for name, each in found.items() if each.state == LOADING)
        if loading:
            raise Retry(
                f"{self._catalog.where}: the copy of {', '.join(loading)} is under way, so rows "
                f"are missing: verify when state is 'complete' in _shardstream.tables, or leave "
                f"the table out with --table"
            )
        return found

    def compared(self, name: Name, known: KnownTarget) -> ComparedTable:
        """Return a table that `chosen` has found."""
        return ComparedTable(
            *(self._dialect, name, known),
            prefix=self._prefix,
            soft=self._soft,
            key_range=self._target.key_range,
        )

    def refresh(self, connection: Connection, table: ComparedTable) -> None:
        """Let a table know the columns that the target has in this transaction."""
        table.now(self._catalog.tables(connection)[table.name])

    def frontier_us(self) -> int:
        """Return the time up to which all tables are complete, 0 before the first batch."""
        with self.transaction() as connection:
            return self._catalog.applied(connection)[1] or 0

    def wait_for(self, executed: dict[ShardSource, GtidSet]) -> None:
        """Wait until the position contains what these shards had executed.

        Retry: a log does not reach it in time, or the position stands still for as long.
        """
        for source, gtids in executed.items():
            self._wait_for_seq(source.shard, source.logged_seq(gtids, self._target.wait_s))

    def _wait_for_seq(self, shard: str, seq: int) -> None:
        """Wait for as long as the target comes nearer, however far it is behind."""
        held, deadline = self._held(), Deadline(self._target.wait_s)
        while (at := _seq_of(held, shard)) < seq:
            time.sleep(_POLL_S)
            before, held = held, self._held()
            if held != before:
                deadline = Deadline(self._target.wait_s)
            elif deadline.passed:
                raise Retry(
                    f"{self._catalog.where} has stood still for {deadline.seconds:g} s at seq {at} "
                    f"of shard {shard}, before seq {seq}: is `shardstream database` running?"
                )

    def _held(self) -> HeldBatch | None:
        with self.transaction() as connection:
            return self._catalog.held(connection)


def _seq_of(held: HeldBatch | None, shard: str) -> int:
    there = None if held is None else held.position.shards.get(shard)
    return -1 if there is None else there.seq


# A FLOAT is not equal to the decimal that it is read as, and families write BIT in different ways.
_NOT_COMPARABLE = frozenset({ValueKind.FLOAT, ValueKind.BIT, ValueKind.BIT64})
# Rows that are looked at again together: each time the target is waited for.
AGAIN_MAX = 2_000
# Parameters of one statement are limited (PostgreSQL: 65,535).
KEYS_AT_ONCE = 200
# A table that is altered while it is compared is compared from its beginning: an online schema
# change in several steps is seen off, and a table that is altered all the time is not.
BEGINNINGS_MAX = 5
# With more the table is not compared any further: it has to be copied again.
DIFFERING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """The result for one table.

    `rows`: of the sources. `changing`: rows that changed in every round. `named`: the first of the
    rows that differ. `is_whole`: False if it ended at DIFFERING_MAX.
    """

    table: str
    state: str
    frontier_us: int
    rows: int
    differing: int
    changing: int
    named: tuple[Difference, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How far the comparison of a table is; `rows_estimated`: of all shards."""

    table: str
    rows: int
    rows_estimated: int
    differing: int


def verify_database(
    target: VerifyTarget,
    sources: Sequence[ShardSource],
    tables: Sequence[Name] = (),
    on_progress: Callable[[VerifyProgress], None] | None = None,
) -> Iterator[VerifiedTable]:
    """Compare the followed tables (`tables`, empty: all) one after the other.

    UsageError: there is no such follower or table, or a table cannot be compared. Retry: a copy is
    under way, another comparison runs, or a log or the target does not reach what a source has
    executed.
    """
    session = ComparedTarget(target)
    with session.claimed():
        chosen = sorted(session.chosen(tables).items())
        for _, known in chosen:
            _check_key(known.table)
        for name, known in chosen:
            compared = session.compared(name, known)
            yield _Comparison(session, compared, sources, known.state, on_progress).run()


def _check_key(table: TargetTable) -> None:
    for column in table.shape.columns:
        if column.name in table.key and column.kind in _NOT_COMPARABLE:
            raise UsageError(
                f"{table.schema}.{table.name}: its primary key has the column {column.name} of "
                f"type {column.sql_type}, by which rows cannot be found again. Compare the other "
                f"tables: name each with --table"
            )


class _Comparison:
    """The comparison of one table."""

    def __init__(
        self,
        session: ComparedTarget,
        table: ComparedTable,
        sources: Sequence[ShardSource],
        state: str,
        on_progress: Callable[[VerifyProgress], None] | None,
    ) -> None:
        self._session = session
        self._table = table
        self._sources = sources
        self._state = state
        self._on_progress = on_progress
        self._name = ".".join(table.name)
        self._estimated = 0
        self._found = RowComparison()

    def run(self) -> VerifiedTable:
        self._choose_sources()
        for _ in range(BEGINNINGS_MAX):
            try:
                return self._compare_all()
            except TableChanged as error:
                changed = error
                self._found = RowComparison()
                with self._session.transaction() as connection:
                    self._table.drop_seen(connection)
        raise Retry(
            f"{self._name}: {changed}; that happened {BEGINNINGS_MAX} times while its rows were "
            f"compared: verify it while nobody alters it"
        )

    def _compare_all(self) -> VerifiedTable:
        with self._session.transaction() as connection:
            newest_us = self._table.newest_us(connection)
            self._table.create_seen(connection)
        again: list[Key] = []
        for source, part in self._parts():
            again += self._compare(source, part)
            if len(again) >= AGAIN_MAX:
                self._found.look_again(again, self._compare_again)
                again = []
            self._report()
        self._found.look_again(again, self._compare_again)
        if self._is_whole:
            self._find_extra_rows(newest_us)
        with self._session.transaction() as connection:
            self._table.drop_seen(connection)
        found = self._found
        return VerifiedTable(
            *(self._name, self._state, self._session.frontier_us(), found.rows),
            *(found.differing, found.changing, found.named, self._is_whole),
        )

    def _choose_sources(self) -> None:
        """Leave out shards without the table: of those, the target should have no rows."""
        found = {source: source.estimated_rows(self._table.name) for source in self._sources}
        self._sources = [source for source, rows in found.items() if rows is not None]
        self._estimated = sum(rows or 0 for rows in found.values())
        if not self._sources:
            raise UsageError(
                f"table {self._name} is on no shard, or the accounts of the producers have no "
                f"SELECT privilege on it: name the other tables with --table"
            )

    @property
    def _is_whole(self) -> bool:
        return self._found.differing < DIFFERING_MAX

    def _parts(self) -> Iterator[tuple[ShardSource, ShardPart]]:
        """Read the table of one shard after the other."""
        for source in self._sources:
            after: TableCursor | None = None
            while self._is_whole:
                part = source.part(self._table.name, after)
                yield source, part
                after = part.upto
                if after is None:
                    break

    def _report(self) -> None:
        if self._on_progress is not None:
            found = self._found
            self._on_progress(
                VerifyProgress(self._name, found.rows, self._estimated, found.differing)
            )

    def _compare(self, source: ShardSource, part: ShardPart) -> list[Key]:
        with self._session.transaction() as connection:
            self._session.refresh(connection, self._table)
            staged = self._table.staged(connection, part.rows, source.decoder)
            if staged is None:
                return []
            self._found.rows += staged.rows
            self._table.add_seen(connection, staged)
            found = self._table.candidates(connection, staged)
            self._table.drop(connection, staged)
        return found

    def _find_extra_rows(self, newest_us: int) -> None:
        """Look for rows that no source has; those changed since the beginning are left out."""
        with self._session.transaction() as connection:
            self._table.index_seen(connection)
        for hidden in (False, True):
            self._find_extra(newest_us, hidden=hidden)

    def _find_extra(self, newest_us: int, *, hidden: bool) -> None:
        while self._is_whole:
            with self._session.transaction() as connection:
                keys = self._table.unseen(connection, newest_us, AGAIN_MAX, hidden=hidden)
            self._found.look_again(keys, self._compare_again)
            with self._session.transaction() as connection:
                for begin in range(0, len(keys), KEYS_AT_ONCE):
                    chunk = keys[begin : begin + KEYS_AT_ONCE]
                    self._table.skip_seen(connection, chunk, hidden=hidden)
            self._report()
            if len(keys) < AGAIN_MAX:
                return

    def _compare_again(self, keys: Sequence[Key], is_last: bool) -> list[Key]:
        """Compare rows by key; return those that have changed since they were read."""
        snapshots = {source: source.rows_of(self._table.name, keys) for source in self._sources}
        self._session.wait_for({s: snapshot.executed for s, snapshot in snapshots.items()})
        seen = {source.shard: snapshot.seen for source, snapshot in snapshots.items()}
        left: list[Key] = []
        homes: dict[Key, list[bytes | None]] = {}
        with self._session.transaction() as connection:
            self._session.refresh(connection, self._table)
            for source, snapshot in snapshots.items():
                for pair in self._pairs(connection, source, snapshot):
                    homes.setdefault(pair.key, []).append(pair.home)
                    if pair.is_there and not pair.differing:
                        continue
                    if self._is_settled(pair.token, seen, is_last=is_last):
                        self._differs(source.shard, pair)
                    else:
                        left.append(pair.key)
            for row in self._live_rows(connection, keys):
                if any(_is_one_home(home, row.home) for home in homes.get(row.key, ())):
                    continue
                if self._is_settled(row.token, seen, is_last=is_last):
                    self._is_surplus(row)
                else:
                    left.append(row.key)
        return left

    def _pairs(
        self, connection: Connection, source: ShardSource, snapshot: ShardSnapshot
    ) -> Sequence[ComparedPair]:
        staged = self._table.staged(connection, snapshot.rows, source.decoder)
        if staged is None:
            return ()
        found = self._table.pairs(connection, staged)
        self._table.drop(connection, staged)
        return found

    def _live_rows(self, connection: Connection, keys: Sequence[Key]) -> Iterator[LiveRow]:
        for begin in range(0, len(keys), KEYS_AT_ONCE):
            yield from self._table.live_rows(connection, keys[begin : begin + KEYS_AT_ONCE])

    @staticmethod
    def _is_settled(token: str | None, seen: dict[str, GtidSet], *, is_last: bool) -> bool:
        """Tell whether the target's row is no newer than the snapshot of its shard.

        A shard that is not read has been replaced in a reshard: its changes are older. A row
        without a token may be newer, so it counts only in the last round.
        """
        if token is None:
            return is_last
        at = EventToken.from_string(token)
        return at.shard not in seen or seen[at.shard].reaches(at.position)

    def _differs(self, shard: str, pair: ComparedPair) -> None:
        key = self._key_text(pair.key)
        if pair.is_there:
            self._found.changed(self._name, shard, key, pair.differing)
        else:
            self._found.missing(self._name, shard, key)

    def _is_surplus(self, row: LiveRow) -> None:
        shard = row.shard or "unknown"
        for source in self._sources:
            if row.home and ShardName.parse(source.shard).key_range.contains(row.home):
                shard = source.shard
        hidden = ", hidden by another row" if row.is_hidden else ""
        self._found.surplus(self._name, shard, self._key_text(row.key), hidden)

    def _key_text(self, key: Key) -> str:
        return key_text(self._table.table.key, key)


def _is_one_home(a: bytes | None, b: bytes | None) -> bool:
    return a is None or b is None or a == b
