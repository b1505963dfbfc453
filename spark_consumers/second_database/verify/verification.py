"""Compares tables of a second database with their sources, row by row, under live writes.

Tables are read from the sources in parts, staged as the writer stages them and compared at once.
Rows that seem to differ are looked at again: they are read from all shards in one snapshot each,
and compared once the target's position contains everything that the snapshots show. A row of the
target that has changed since then has a token that a snapshot does not contain, and waits for the
next round. So the source is asked for what it holds, never told to stop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from event_token import EventToken, GtidSet, ShardName
from event_token.errors import UsageError
from spark_consumers.second_database.names import TargetTable
from spark_consumers.second_database.verify.compared_table import ComparedTable, LiveRow, Pair
from spark_consumers.second_database.verify.sources import Key, Name, Part, ShardSource, Snapshot
from spark_consumers.second_database.verify.target_session import TargetSession, VerifyTarget
from topics.records.table_shape import ValueKind

# A row that is changed more often than the target applies batches may have changed in each round.
ROUNDS_MAX = 3
# A FLOAT is not equal to the decimal that it is read as, and families write BIT in different ways.
_NOT_COMPARABLE = frozenset({ValueKind.FLOAT, ValueKind.BIT, ValueKind.BIT64})
# Rows that are looked at again together: each time the target is waited for.
AGAIN_MAX = 2_000
# Parameters of one statement are limited (SQLite: 32,766).
KEYS_AT_ONCE = 200
# Differing rows that are listed; all are counted.
NAMED_MAX = 100
# With more the table is not compared any further: it has to be copied again.
DIFFERING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs.

    `shard`: whose row it is. `columns`: those that differ, empty if it is missing or extra.
    """

    shard: str
    key: str
    what: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified:
    """The result for one table.

    `rows`: of the sources. `changing`: rows that changed in every round. `named`: the first
    NAMED_MAX rows that differ. `is_whole`: False if it ended at DIFFERING_MAX.
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
class Progress:
    """How far the comparison of a table is; `rows_estimated`: of all shards."""

    table: str
    rows: int
    rows_estimated: int
    differing: int


def verify_database(
    target: VerifyTarget,
    sources: Sequence[ShardSource],
    tables: Sequence[Name] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> Iterator[Verified]:
    """Compare the followed tables (`tables`, empty: all) one after the other.

    UsageError: there is no such follower or table, or a table cannot be compared. Retry: a copy is
    under way, another comparison runs, or a log or the target does not reach what a source has
    executed.
    """
    session = TargetSession(target)
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
        session: TargetSession,
        table: ComparedTable,
        sources: Sequence[ShardSource],
        state: str,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._session = session
        self._table = table
        self._sources = sources
        self._state = state
        self._on_progress = on_progress
        self._name = ".".join(table.name)
        self._estimated = 0
        self._rows = 0
        self._differing = 0
        self._changing = 0
        self._named: list[Difference] = []

    def run(self) -> Verified:
        self._choose_sources()
        with self._session.transaction() as connection:
            newest_us = self._table.newest_us(connection)
            self._table.create_seen(connection)
        again: list[Key] = []
        for source, part in self._parts():
            again += self._compare(source, part)
            if len(again) >= AGAIN_MAX:
                self._look_again(again)
                again = []
            self._report()
        self._look_again(again)
        if self._is_whole:
            self._find_extra_rows(newest_us)
        with self._session.transaction() as connection:
            self._table.drop_seen(connection)
        return Verified(
            *(self._name, self._state, self._session.frontier_us(), self._rows),
            *(self._differing, self._changing, tuple(self._named), self._is_whole),
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
        return self._differing < DIFFERING_MAX

    def _parts(self) -> Iterator[tuple[ShardSource, Part]]:
        """Read the table of one shard after the other."""
        for source in self._sources:
            after: tuple[str, ...] = ()
            while self._is_whole:
                part = source.part(self._table.name, after)
                yield source, part
                after = part.upto
                if not after:
                    break

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(Progress(self._name, self._rows, self._estimated, self._differing))

    def _compare(self, source: ShardSource, part: Part) -> list[Key]:
        with self._session.transaction() as connection:
            self._session.refresh(connection, self._table)
            staged = self._table.staged(connection, part.rows, source.decoder)
            if staged is None:
                return []
            self._rows += staged.rows
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
            self._look_again(keys)
            with self._session.transaction() as connection:
                for begin in range(0, len(keys), KEYS_AT_ONCE):
                    chunk = keys[begin : begin + KEYS_AT_ONCE]
                    self._table.skip_seen(connection, chunk, hidden=hidden)
            self._report()
            if len(keys) < AGAIN_MAX:
                return

    def _look_again(self, keys: Sequence[Key]) -> None:
        left = list(dict.fromkeys(keys))
        for number in range(1, ROUNDS_MAX + 1):
            if not left:
                return
            left = self._round(left, is_last=number == ROUNDS_MAX)
        self._changing += len(left)

    def _round(self, keys: Sequence[Key], *, is_last: bool) -> list[Key]:
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
                    self._is_extra(row)
                else:
                    left.append(row.key)
        return list(dict.fromkeys(left))

    def _pairs(
        self, connection: Connection, source: ShardSource, snapshot: Snapshot
    ) -> Sequence[Pair]:
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
        without a token does not tell, so it is believed only in the last round.
        """
        if token is None:
            return is_last
        at = EventToken.from_string(token)
        return at.shard not in seen or seen[at.shard].reaches(at.position)

    def _differs(self, shard: str, pair: Pair) -> None:
        if pair.is_there:
            self._add(
                Difference(
                    shard,
                    self._key_text(pair.key),
                    f"it differs in {', '.join(pair.differing)}",
                    pair.differing,
                )
            )
        else:
            self._add(Difference(shard, self._key_text(pair.key), "it is missing in the target"))

    def _is_extra(self, row: LiveRow) -> None:
        shard = row.shard or "unknown"
        for source in self._sources:
            if row.home and ShardName.parse(source.shard).key_range.contains(row.home):
                shard = source.shard
        what = "it is in the target alone" + (", hidden by another row" if row.is_hidden else "")
        self._add(Difference(shard, self._key_text(row.key), what))

    def _add(self, difference: Difference) -> None:
        self._differing += 1
        if len(self._named) < NAMED_MAX:
            self._named.append(difference)

    def _key_text(self, key: Key) -> str:
        names = zip(self._table.table.key, key, strict=True)
        return ", ".join(f"{name}={value}" for name, value in names)


def _is_one_home(a: bytes | None, b: bytes | None) -> bool:
    return a is None or b is None or a == b
