"""A followed table, and the SQL that compares it with staged rows of its source."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
from sqlalchemy import Connection

from databases.table_cursor import TableCursor
from event_token import GtidSet, KeyRange
from sinks.database.catalog import KnownTarget
from sinks.database.dialect import Dialect, rows_of, run
from sinks.database.staging import stage
from sinks.rule.columns import TEXT_SUFFIX, KnownTable, places, renamed
from sinks.rule.homes import DELETED, HOME, KEY, SHARD, TIME, TOKEN
from sinks.rule.policy import OnTypeChange, RowPolicy
from sinks.rule.task_changes import FollowedTables, changes_of
from topics.arrow.decoders import TableDecoder
from topics.records.table_shape import Column

Name = tuple[str, str]  # database, table
Key = tuple[object, ...]  # values of a primary key, as the target's driver returns them


@dataclass(frozen=True, slots=True)
class ShardPart:
    """Rows of a table in the order of its key.

    `rows`: READ records, with the columns that `changes_of` takes. `upto`: where
    it ends, None at the table's end.
    """

    rows: pa.Table
    upto: TableCursor | None


@dataclass(frozen=True, slots=True)
class ShardSnapshot:
    """Rows of one consistent read.

    The read sees all transactions of `seen`, and none that `executed` lacks.
    """

    rows: pa.Table
    seen: GtidSet
    executed: GtidSet


class ShardSource(Protocol):
    """Reads tables of one shard as its producer would log them."""

    @property
    def shard(self) -> str:
        """The shard's name."""

    @property
    def decoder(self) -> TableDecoder:
        """Decodes the records that are read."""

    def estimated_rows(self, table: Name) -> int | None:
        """Return about how many rows a table has; None if the account sees no such table."""

    def part(self, table: Name, after: TableCursor | None) -> ShardPart:
        """Return the rows behind a part (None: from the beginning).

        TableChanged: it is another table, or has another definition, than when that part was read.
        """

    def rows_of(self, table: Name, keys: Sequence[Key]) -> ShardSnapshot:
        """Return the rows that have one of these primary keys."""

    def logged_seq(self, executed: GtidSet, wait_s: float) -> int:
        """Return a seq up to which the shard's log holds `executed`; Retry if not in time."""


# What a column is called after its type has changed: `name__v2`.
_LATER_TYPE = re.compile(r"(.+)__v(\d+)")


class _AnyTable(RowPolicy):
    """Follows the table that is compared, whatever characters its name has."""

    def follows(self, name: tuple[str, str]) -> bool:  # noqa: ARG002 - the caller has chosen it
        """Tell whether the sink follows a table."""
        return True


@dataclass(frozen=True, slots=True)
class StagedPart:
    """Rows of one shard in a staging table.

    `place`: its quoted name. `columns`: those that are compared, by name, without the key.
    """

    name: str
    place: str
    rows: int
    columns: Mapping[str, Column]


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """A staged row and the row of the same key and home in the target, if there is one.

    `token`: of the target's row, or of its tombstone.
    """

    key: Key
    home: bytes | None
    is_there: bool
    differing: tuple[str, ...] = ()
    token: str | None = None


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row that readers of the target see, or one that is `hidden` by a row of another home."""

    key: Key
    home: bytes | None
    shard: str | None
    token: str | None
    is_hidden: bool = False


class ComparedTable:
    """One table; all methods run in the caller's transaction."""

    def __init__(
        self,
        dialect: Dialect,
        name: Name,
        known: KnownTarget,
        *,
        prefix: str,
        soft: bool,
        key_range: KeyRange,
    ) -> None:
        """`prefix`: of the names of staging tables. `soft`: rows may be marked as deleted."""
        self._dialect = dialect
        self.name = name
        self.now(known)
        self._prefix = prefix
        self._soft = soft
        self._key_range = key_range
        self._place = dialect.table(self.table.schema, self.table.name)
        self._homes = dialect.internal(self.table.homes)
        self.seen = f"{prefix}keys_{self.table.number}"

    def now(self, known: KnownTarget) -> None:
        """Take the columns that the target has by now: they change while it follows."""
        self.table = known.table
        self._known = KnownTable(known.table.shape, known.renames)

    def staged(
        self, connection: Connection, routed: pa.Table, decoder: TableDecoder
    ) -> StagedPart | None:
        """Stage records of one shard as the writer stages them; None if no row is followed."""
        if not routed.num_rows:
            return None
        version = renamed(decoder.shape(routed["schema_id"][0].as_py()), self._known.renames)
        policy = _AnyTable(on_type_change=OnTypeChange.NEW_COLUMN)
        followed = FollowedTables({self.name: self._known}, policy)
        [changes] = changes_of(routed, decoder, partitions=1, task=0, followed=followed)
        is_mine = [
            home is None or self._key_range.contains(home)
            for home in changes.rows[HOME].to_pylist()
        ]
        changes = replace(changes, rows=changes.rows.filter(pa.array(is_mine, pa.bool_())))
        staged = stage(connection, self._dialect, changes, self._prefix)
        if staged.stage is None:
            return None
        own = {*places(version, changes.shape)}
        compared = (
            column
            for column in changes.shape.columns
            if column.name in own or column.name.removesuffix(TEXT_SUFFIX) in own
        )
        return StagedPart(
            staged.stage,
            self._dialect.internal(staged.stage),
            staged.rows,
            {column.name: column for column in compared if column.name not in self.table.key},
        )

    def drop(self, connection: Connection, part: StagedPart) -> None:
        """Drop the staging table."""
        self._dialect.drop_stage(connection, part.name)

    def candidates(self, connection: Connection, part: StagedPart) -> list[Key]:
        """Return the keys of staged rows for which the table has no equal row."""
        d = self._dialect
        condition = self._matching("t", d.same_key("t", "s", self.table.key))
        differs = [self._differs(each) for each in part.columns.values()]
        if differs:
            condition += f" AND NOT ({' OR '.join(differs)})"
        found = rows_of(
            connection,
            f"SELECT {d.listed(self.table.key, 's.')} FROM {part.place} s "
            f"WHERE NOT EXISTS (SELECT 1 FROM {self._place} t WHERE {condition})",
        )
        return [tuple(row) for row in found]

    def pairs(self, connection: Connection, part: StagedPart) -> list[ComparedPair]:
        """Return every staged row with its best match: equal, differing, or none.

        One statement sees the table, the hidden rows and the tombstones at one moment. Between
        two of them the writer may move a row from one to the other, and it would seem missing.
        """
        d, key = self._dialect, self.table.key
        same_key = f"{d.same_key('t', 's', [KEY])} AND {d.perhaps_same_home('s', 't')} AND"
        deleted = f"t.{d.quote(DELETED)}"
        visible = self._matching("t", d.same_key("t", "s", key))
        joined = [
            self._joined(part, f"LEFT JOIN {self._place} t ON {visible}"),
            self._joined(part, f"LEFT JOIN {self._homes} t ON {same_key} NOT {deleted}"),
            self._joined(part, f"JOIN {self._homes} t ON {same_key} {deleted}", is_dead=True),
        ]
        best: dict[tuple[Key, bytes | None], ComparedPair] = {}
        tombstones: dict[Key, str | None] = {}
        for is_dead, pair in self._pairs(connection, part, " UNION ALL ".join(joined)):
            if is_dead:
                tombstones[pair.key] = pair.token
                continue
            there = best.get((pair.key, pair.home))
            if there is None or (pair.is_there and not (there.is_there and pair.differing)):
                best[pair.key, pair.home] = pair
        return [
            pair if pair.is_there else replace(pair, token=tombstones.get(pair.key))
            for pair in best.values()
        ]

    def _joined(self, part: StagedPart, join: str, *, is_dead: bool = False) -> str:
        """Return the query of staged rows with what is joined to them as `t`."""
        d, key = self._dialect, self.table.key
        flags = [
            "0" if is_dead else f"CASE WHEN {self._differs(each)} THEN 1 ELSE 0 END"
            for each in part.columns.values()
        ]
        columns = [
            "1" if is_dead else "0",
            d.listed(key, "s."),
            f"s.{d.quote(HOME)}",
            f"CASE WHEN t.{d.quote(key[0])} IS NULL THEN 0 ELSE 1 END",
            f"t.{d.quote(TOKEN)}",
            *flags,
        ]
        return f"SELECT {', '.join(columns)} FROM {part.place} s {join}"

    def _pairs(
        self, connection: Connection, part: StagedPart, query: str
    ) -> Iterator[tuple[bool, ComparedPair]]:
        """Yield what queries of `_joined` return, and whether it is a tombstone's."""
        width = len(self.table.key)
        for is_dead, *row in rows_of(connection, query):
            home, is_there, token, *differs = row[width:]
            names = zip(part.columns, differs, strict=True)
            yield (
                bool(is_dead),
                ComparedPair(
                    tuple(row[:width]),
                    None if home is None else bytes(home),
                    bool(is_there),
                    tuple(name for name, flag in names if flag) if is_there else (),
                    token,
                ),
            )

    def live_rows(self, connection: Connection, keys: Sequence[Key]) -> list[LiveRow]:
        """Return the visible and the hidden rows that have these keys."""
        d, key = self._dialect, self.table.key
        asked, values = self._among(keys)
        found = []
        for is_hidden in (False, True):
            place, alive = self._rows(is_hidden=is_hidden)
            query = (
                f"SELECT {d.listed((*key, HOME, SHARD, TOKEN), 't.')} FROM {place} t "
                f"WHERE {asked}{alive}"
            )
            for row in rows_of(connection, query, values):
                home, shard, token = row[len(key) :]
                at_home = None if home is None else bytes(home)
                values_of_key = tuple(row[: len(key)])
                found.append(LiveRow(values_of_key, at_home, shard, token, is_hidden))
        return found

    def newest_us(self, connection: Connection) -> int:
        """Return the time of the table's newest change, -1 if it has no rows."""
        time = self._dialect.quote(TIME)
        found = [
            rows_of(connection, f"SELECT MAX({time}) FROM {place}")[0][0]
            for place in (self._place, self._homes)
        ]
        return max((-1, *(int(each) for each in found if each is not None)))

    def create_seen(self, connection: Connection) -> None:
        """Create the table of the keys that the sources have, with their homes."""
        d = self._dialect
        types = {
            column.name: d.type_of(column, is_key=True)
            for column in self.table.shape.columns
            if column.name in self.table.key
        }
        d.create_stage(connection, self.seen, types | d.meta_columns((HOME,)))

    def index_seen(self, connection: Connection) -> None:
        """Index the keys, once all are there."""
        self._dialect.index_stage(connection, self.seen, self.table.key)

    def add_seen(self, connection: Connection, part: StagedPart) -> None:
        """Note the keys of staged rows."""
        listed = self._dialect.listed((*self.table.key, HOME))
        seen = self._dialect.internal(self.seen)
        run(connection, f"INSERT INTO {seen} ({listed}) SELECT {listed} FROM {part.place}")

    def skip_seen(self, connection: Connection, keys: Sequence[Key], *, hidden: bool) -> None:
        """Note keys of the table as if a source had them: they have been looked at."""
        listed = self._dialect.listed((*self.table.key, HOME))
        seen = self._dialect.internal(self.seen)
        asked, values = self._among(keys)
        place, _ = self._rows(is_hidden=hidden)
        run(
            connection,
            f"INSERT INTO {seen} ({listed}) SELECT {listed} FROM {place} t WHERE {asked}",
            values,
        )

    def drop_seen(self, connection: Connection) -> None:
        """Drop the table of keys."""
        self._dialect.drop_stage(connection, self.seen)

    def unseen(
        self, connection: Connection, until_us: int, rows_max: int, *, hidden: bool
    ) -> list[Key]:
        """Return keys of rows, last changed by `until_us`, that no source has."""
        d = self._dialect
        same = f"{d.same_key('s', 't', self.table.key)} AND {d.perhaps_same_home('s', 't')}"
        time = f"t.{d.quote(TIME)}"
        place, alive = self._rows(is_hidden=hidden)
        found = rows_of(
            connection,
            f"SELECT {d.listed(self.table.key, 't.')} FROM {place} t "
            f"WHERE ({time} IS NULL OR {time} <= :until){alive} AND NOT EXISTS "
            f"(SELECT 1 FROM {d.internal(self.seen)} s WHERE {same}) "
            f"LIMIT {rows_max}",
            {"until": until_us},
        )
        return [tuple(row) for row in found]

    def _rows(self, *, is_hidden: bool) -> tuple[str, str]:
        """Return where visible or hidden rows lie, and the condition that `t` is none deleted."""
        if is_hidden:
            return self._homes, f" AND NOT t.{self._dialect.quote(DELETED)}"
        return self._place, self._alive("t")

    def _among(self, keys: Sequence[Key]) -> tuple[str, dict[str, object]]:
        """Return the condition that `t` has one of these keys, and its parameters."""
        d = self._dialect
        alternatives, values = [], {}
        for i, key in enumerate(keys):
            equal = []
            for j, (name, value) in enumerate(zip(self.table.key, key, strict=True)):
                values[f"k{i}_{j}"] = value
                equal.append(f"t.{d.quote(name)} = :k{i}_{j}")
            alternatives.append(f"({' AND '.join(equal)})")
        return f"({' OR '.join(alternatives)})", values

    def _matching(self, alias: str, same_key: str) -> str:
        return f"{same_key}{self._alive(alias)} AND {self._dialect.perhaps_same_home('s', 't')}"

    def _alive(self, alias: str) -> str:
        deleted = f"COALESCE({alias}.{self._dialect.quote(DELETED)}, FALSE)"
        return f" AND {deleted} = FALSE" if self._soft else ""

    def _differs(self, column: Column) -> str:
        """Return the condition that a column of `s`, the source's row, differs from that of `t`.

        A column that the target has not got yet holds NULL. So does `name__v2` in rows that have
        not changed since the type did: their value is still in `name`, in another type.
        """
        d, name = self._dialect, column.name
        mine, theirs = f"s.{d.quote(name)}", f"t.{d.quote(name)}"
        there = next((each for each in self.table.shape.columns if each.name == name), None)
        if there is not None and d.type_of(there) != d.type_of(column):
            # The target widens a column with the first row that changes after the source has.
            theirs = d.converted(theirs, column)
        differs = d.differs(mine, theirs) if there is not None else f"{mine} IS NOT NULL"
        earlier = [f"t.{d.quote(each)} IS NOT NULL" for each in self._earlier_types(name)]
        if not earlier:
            return differs
        unchanged = f"({' OR '.join(earlier)})"
        if there is not None:
            unchanged = f"({theirs} IS NULL AND {unchanged})"
        return f"({differs} AND NOT {unchanged})"

    def _earlier_types(self, name: str) -> list[str]:
        found = _LATER_TYPE.fullmatch(name)
        if found is None:
            return []
        names = [found[1], *(f"{found[1]}__v{i}" for i in range(2, int(found[2])))]
        return [each for each in names if each in self.table.columns]
