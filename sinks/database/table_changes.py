"""Applies the staged changes of one batch to one table, in the caller's transaction.

Whole rows are upserted in bulk. Keys with several homes are settled by `sinks.rule.homes`, and
changes that a trigger or a rule of the table has skipped are found.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, bindparam
from sqlalchemy import text as sql_text

from event_token.errors import Retry
from sinks.database.dialect import (
    CONTESTED,
    KEPT,
    NUMBER,
    ORIGIN,
    STORED,
    Dialect,
    StagedUpsert,
    TargetTable,
    Update,
    rows_of,
    run,
)
from sinks.database.options import DatabaseOptions
from sinks.database.staging import StagedChanges, absent_text
from sinks.errors import DatabaseRefuses
from sinks.rule.homes import (
    ABSENT,
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    TIME,
    TOKEN,
    Version,
    range_of,
    settle,
)
from sinks.rule.policy import OnPartial
from sinks.rule.upserts import home_bounds
from topics.errors import CannotApply


@dataclass(frozen=True)
class _StoredTable:
    """A table of the target with its hidden rows and tombstones (`homes`), in a transaction."""

    connection: Connection
    dialect: Dialect
    table: TargetTable
    policy: DatabaseOptions

    @cached_property
    def place(self) -> str:
        return self.dialect.table(self.table.schema, self.table.name)

    @cached_property
    def homes(self) -> str:
        return self.dialect.internal(self.table.homes)

    @cached_property
    def kept(self) -> tuple[str, ...]:
        return KEPT if self.policy.is_soft else STORED

    @cached_property
    def alive(self) -> str:
        """Return the condition that the row `t` is none that the source deleted."""
        deleted = self.dialect.quote(DELETED)
        return f" AND t.{deleted} = FALSE" if self.policy.is_soft else ""

    def run(self, statement: str, values: Mapping[str, object] | None = None) -> int:
        return run(self.connection, statement, values)

    def rows(self, query: str, values: Mapping[str, object] | None = None) -> list[Any]:
        return rows_of(self.connection, query, values)

    def stage(self, staged: StagedChanges) -> str:
        return self.dialect.internal(str(staged.stage))

    def same_key(self, a: str, b: str) -> str:
        return self.dialect.same_key(a, b, self.table.key)

    def delete(
        self, place: str, other: str, where: str, values: Mapping[str, object] | None = None
    ) -> None:
        self.run(self.dialect.delete_of(place, other, where), values)


class _SkipChecks:
    """Finds changes that the target skipped without an error, as a trigger or a rule of it may.

    A row that is written carries shard and seq of its change, so a query shows whether it arrived.
    All checks raise DatabaseRefuses.
    """

    def __init__(self, stored: _StoredTable) -> None:
        self._stored = stored
        d = stored.dialect
        self._same_key_and = f"SELECT 1 FROM {stored.place} t WHERE {stored.same_key('t', 's')}"
        self._is_that = d.same_key("t", "s", (SHARD, SEQ))

    @cached_property
    def are_needed(self) -> bool:
        """Whether the table has triggers or rules that can skip rows, as few tables have."""
        stored = self._stored
        return stored.dialect.may_skip_rows(stored.connection, stored.table)

    def written(self, stage: str, which: str) -> None:
        """`which`: a condition on rows `s` of a quoted staging table, which the table must have."""
        self._check(stage, f"{which} AND NOT EXISTS ({self._same_key_and} AND {self._is_that})")

    def laid_over(self, stage: str, which: str, values: Mapping[str, object]) -> None:
        """`which`: with `values`, of rows that were laid over stored ones of the same home."""
        if self.are_needed:
            at_home = self._stored.dialect.same_home("t", "s")
            wrong = f"{at_home} AND NOT ({self._is_that}){self._stored.alive}"
            self._check(stage, f"{which} AND EXISTS ({self._same_key_and} AND {wrong})", values)

    def deleted(self, stage: str, which: str, alive: str = "") -> None:
        """`which`: of rows `s` whose keys the table must not have, with `alive` as live rows."""
        if self.are_needed:
            self._check(stage, f"{which} AND EXISTS ({self._same_key_and}{alive})")

    def none_left(self, where: str, values: Mapping[str, object]) -> None:
        """`where`: a condition that a statement over the whole table has left no row with."""
        query = f"SELECT 1 FROM {self._stored.place} WHERE {where} LIMIT 1"
        if self.are_needed and self._stored.rows(query, values):
            raise self.refusal("some rows")

    def refusal(self, rows: str) -> DatabaseRefuses:
        table = self._stored.table
        name = ".".join(filter(None, (table.schema, table.name)))
        return DatabaseRefuses(
            f"{self._stored.dialect.place}: table {name} did not take the change of {rows}, and "
            f"the database reported no error: a trigger (BEFORE ... FOR EACH ROW) or a rule of the "
            f"table skipped it. Drop it, or let the trigger return NEW (for DELETE: OLD), and "
            f"start again: nothing is lost"
        )

    def _check(self, stage: str, which: str, values: Mapping[str, object] | None = None) -> None:
        columns = self._stored.dialect.listed((KEY, SHARD, SEQ), "s.")
        query = f"SELECT {columns} FROM {stage} s WHERE {which} LIMIT 1"
        for key, shard, seq in self._stored.rows(query, values):
            raise self.refusal(f"key {key}, shard {shard}, seq {seq}")


# `_contested` of rows that are settled already.
SETTLED = 2
# Numbers in one statement: databases limit its parameters (PostgreSQL: 65,535).
NUMBERS_MAX = 10_000
_READ = (KEY, HOME, SHARD, SEQ, TIME, DELETED, TOKEN)


class _Settling:
    """Settles keys that have several homes, or changes that must be compared with stored ones.

    They are few. All versions of such a key (the visible row, hidden rows and tombstones, and the
    changes) are put into one work table and numbered; `sinks.rule.homes` decides over their order,
    and the rows are then moved by number, so that no value passes through Python.
    """

    def __init__(self, stored: _StoredTable, checks: _SkipChecks) -> None:
        self._stored = stored
        self._checks = checks
        q = stored.dialect.quote
        self._contested = f"{q(CONTESTED)} = 1"

    def settle(self, stages: Iterable[StagedChanges]) -> bool:
        """Settle the contested rows of staging tables and mark them as settled; False: none are.

        All tasks' rows together: values of unique indexes move between keys of different tasks.
        """
        stored, d = self._stored, self._stored.dialect
        contested = [staged for staged in stages if self._is_contested(staged)]
        if not contested:
            return False
        for staged in contested:
            self._mark_whole_keys(stored.stage(staged))
            self._check_whole(staged)
        work = d.create_work(stored.connection, stored.table)
        for staged in contested:
            self._collect(staged, work)
        columns = d.listed((NUMBER, *_READ, ORIGIN))
        visible, others = _decide(stored.rows(f"SELECT {columns} FROM {work}"))
        stored.delete(stored.place, f"{work} w", stored.same_key("w", "t"))
        stored.delete(stored.homes, f"{work} w", d.same_key("w", "t", [KEY]))
        self._checks.deleted(work, "TRUE")
        own = stored.table.columns
        self._move(work, visible, stored.place, (*own, *stored.kept))
        self._move(work, others, stored.homes, (KEY, *KEPT, *own))
        d.drop_work(stored.connection, work)
        for staged in contested:
            settled = f"{d.quote(CONTESTED)} = {SETTLED}"
            stored.run(f"UPDATE {stored.stage(staged)} SET {settled} WHERE {self._contested}")
        return True

    def _is_contested(self, staged: StagedChanges) -> bool:
        stage = self._stored.stage(staged)
        return bool(self._stored.rows(f"SELECT 1 FROM {stage} WHERE {self._contested} LIMIT 1"))

    def _mark_whole_keys(self, stage: str) -> None:
        """All changes of a key are settled together."""
        q = self._stored.dialect.quote
        query = f"SELECT DISTINCT {q(KEY)} FROM {stage} WHERE {self._contested}"
        keys = [key for (key,) in self._stored.rows(query)]
        mark = f"UPDATE {stage} SET {self._contested} WHERE {q(CONTESTED)} = 0"
        self._run_for_all(f"{mark} AND {q(KEY)}", keys)

    def _run_for_all(self, statement: str, values: Sequence[object]) -> int:
        """Run a statement that ends with a column, for rows that have one of the values there."""
        among = sql_text(f"{statement} IN :values").bindparams(bindparam("values", expanding=True))
        done = 0
        for begin in range(0, len(values), NUMBERS_MAX):
            some = {"values": values[begin : begin + NUMBERS_MAX]}
            done += int(self._stored.connection.execute(among, some).rowcount)
        return done

    def _check_whole(self, staged: StagedChanges) -> None:
        if not staged.partial:
            return
        d = self._stored.dialect
        partial = self._stored.rows(
            f"SELECT {d.listed((KEY, SHARD, SEQ))} FROM {self._stored.stage(staged)} "
            f"WHERE {self._contested} AND {d.quote(ABSENT)} IS NOT NULL LIMIT 1",
        )
        if partial:
            key, shard, seq = partial[0]
            raise CannotApply(
                f"{staged.database}.{staged.table}, key {key}, shard {shard}, seq {seq}: the row "
                f"image has only part of its columns, and the key has rows of several shards or "
                f"was changed late, so its rows cannot be told apart. Set binlog_row_image=FULL "
                f"and start a new target from a copy taken after that"
            )

    def _collect(self, staged: StagedChanges, work: str) -> None:
        """Put the stored versions (origin 0) and the changes (origin 1) of the keys into `work`."""
        stored, d = self._stored, self._stored.dialect
        stage, own = stored.stage(staged), stored.table.columns
        mine = f"s.{self._contested}"
        # The keys as JSON text, each once with the columns of the key.
        distinct = d.listed((KEY, *stored.table.key), "s.")
        keys = f"(SELECT DISTINCT {distinct} FROM {stage} s WHERE {mine}) k"
        kept = [*STORED, *own]
        stored.run(
            f"INSERT INTO {work} ({d.listed((ORIGIN, KEY, DELETED, *kept))}) "
            f"SELECT 0, k.{d.quote(KEY)}, FALSE, {d.listed(kept, 't.')} "
            f"FROM {stored.place} t JOIN {keys} ON {stored.same_key('t', 'k')}{stored.alive}",
        )
        every = [KEY, *KEPT, *own]
        stored.run(
            f"INSERT INTO {work} ({d.listed((ORIGIN, *every))}) SELECT 0, {d.listed(every, 'h.')} "
            f"FROM {stored.homes} h WHERE EXISTS (SELECT 1 FROM {stage} s WHERE {mine} "
            f"AND {d.same_key('s', 'h', [KEY])})",
        )
        staged_too = [KEY, *KEPT, *staged.columns]
        stored.run(
            f"INSERT INTO {work} ({d.listed((ORIGIN, *staged_too))}) "
            f"SELECT 1, {d.listed(staged_too, 's.')} FROM {stage} s WHERE {mine}",
        )

    def _move(self, work: str, numbers: list[int], place: str, columns: Iterable[str]) -> None:
        listed = self._stored.dialect.listed(columns)
        insert = f"INSERT INTO {place} ({listed}) SELECT {listed} FROM {work} WHERE {NUMBER}"
        if self._run_for_all(insert, numbers) < len(numbers) and self._checks.are_needed:
            raise self._checks.refusal("rows of several shards")


def _decide(rows: Iterable[tuple[object, ...]]) -> tuple[list[int], list[int]]:
    """Return the numbers of the visible rows, and of hidden rows and tombstones."""
    stored: defaultdict[object, list[Version]] = defaultdict(list)
    changes: defaultdict[object, list[Version]] = defaultdict(list)
    numbers: dict[tuple[object, ...], int] = {}
    for number, key, home, shard, seq, time_us, deleted, token, origin in rows:
        at_home = None if home is None else bytes(home)  # type: ignore[call-overload]
        version = Version(
            *(str(shard), int(seq), int(time_us), at_home),  # type: ignore[call-overload]
            None if deleted else number,
            None if token is None else str(token),
        )
        (changes if origin else stored)[key].append(version)
        if deleted:
            numbers[key, version] = int(number)  # type: ignore[call-overload]
    visible, others = [], []
    for key, asked in changes.items():
        settled = settle(stored.get(key, ()), asked)
        if settled.visible is not None:
            visible.append(settled.visible.row)
        others += [
            numbers[key, version] if version.row is None else version.row
            for version in settled.others
        ]
    return [int(str(n)) for n in visible], [int(str(n)) for n in others]


class TableWriter:
    """Applies changes to one table."""

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        table: TargetTable,
        policy: DatabaseOptions,
    ) -> None:
        self._stored = stored = _StoredTable(connection, dialect, table, policy)
        self._checks = _SkipChecks(stored)
        self._settling = _Settling(stored, self._checks)
        d = dialect
        self._mark = f"SET {d.quote(CONTESTED)} = 1 WHERE {d.quote(CONTESTED)} = 0"
        self._is_hidden = f"{d.quote(DELETED)} = FALSE"  # among the rows of `homes`
        self.may_hide = False  # whether the batch had to do with keys of several homes

    def apply(
        self, stages: Sequence[StagedChanges], removals: Sequence[Version], *, replace: bool
    ) -> None:
        """Apply statements that remove rows, then the rows of all tasks.

        `replace`: rows are deleted before they are inserted, so that values of unique indexes can
        move from row to row.
        """
        for removal in removals:
            self._remove(removal)
        if removals and self._has_hidden_rows():
            self._show_hidden_rows()
        self.may_hide = bool(removals)
        with_rows = [staged for staged in stages if staged.stage is not None]
        if not with_rows:
            return
        for staged in with_rows:
            self._check_staged(staged)
        hides = self._has_hidden_rows()
        self.may_hide |= hides
        for staged in with_rows:
            self._mark_contested(staged, hides=hides, everywhere=replace)
        if replace:
            for staged in with_rows:
                self._delete_upserted(staged)
        for staged in with_rows:
            if staged.tombstones:
                self._bury(staged)
        self.may_hide |= self._settling.settle(with_rows)
        for staged in with_rows:
            if staged.rows > staged.tombstones:
                self._upsert(staged)

    def same_keys(self, limit: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return some keys that have several live rows, as JSON, and the shards of these."""
        stored, q = self._stored, self._stored.dialect.quote
        found: dict[str, set[str]] = {}
        for key, hidden, visible in stored.rows(
            f"SELECT h.{q(KEY)}, h.{q(SHARD)}, t.{q(SHARD)} FROM {stored.homes} h "
            f"JOIN {stored.place} t ON {stored.same_key('t', 'h')}{stored.alive} "
            f"WHERE h.{self._is_hidden} LIMIT {limit}",
        ):
            found.setdefault(key, set()).update((hidden, visible))
        return [(key, tuple(sorted(shards))) for key, shards in found.items()]

    def expire(self, before_us: int) -> None:
        """Remove tombstones that are older."""
        q = self._stored.dialect.quote
        dead = f"{q(DELETED)} = TRUE AND {q(TIME)} < :before"
        self._stored.run(f"DELETE FROM {self._stored.homes} WHERE {dead}", {"before": before_us})

    def clear(self, column: str, at: Version) -> None:
        """Set a column to NULL in the rows that are older than its DROP on a shard."""
        older, values = self._older_there(at)
        name = self._stored.dialect.quote(column)
        where = f"{name} IS NOT NULL AND {older}"
        for place in (self._stored.place, self._stored.homes):
            self._stored.run(f"UPDATE {place} SET {name} = NULL WHERE {where}", values)
        self._checks.none_left(where, values)

    def _check_staged(self, staged: StagedChanges) -> None:
        """Staging tables are not logged: after a crash of the server they are empty."""
        found = self._count(self._stored.stage(staged), "TRUE")
        if found != staged.rows:
            raise Retry(
                f"{staged.database}.{staged.table}: {staged.rows - found} of {staged.rows} staged "
                f"rows are gone, the server has restarted: the batch must be staged again"
            )

    def _has_hidden_rows(self) -> bool:
        query = f"SELECT 1 FROM {self._stored.homes} WHERE {self._is_hidden} LIMIT 1"
        return bool(self._stored.rows(query))

    def _mark_contested(self, staged: StagedChanges, *, hides: bool, everywhere: bool) -> None:
        """Mark keys with hidden rows, and tombstones (or all rows) that meet another home."""
        stored, d = self._stored, self._stored.dialect
        stage = stored.stage(staged)
        if hides:
            stored.run(
                f"UPDATE {stage} {self._mark} AND EXISTS (SELECT 1 FROM {stored.homes} h "
                f"WHERE {d.same_key('h', stage, [KEY])} AND h.{self._is_hidden})",
            )
        if everywhere:
            self._mark_foreign(stage, "TRUE")
        elif staged.tombstones:
            self._mark_foreign(stage, f"{stage}.{d.quote(DELETED)} = TRUE")

    def _mark_foreign(self, stage: str, which: str) -> None:
        """Mark those of some rows that meet a row of another home."""
        stored = self._stored
        at_home = stored.dialect.same_home("t", stage)
        stored.run(
            f"UPDATE {stage} {self._mark} AND {which} AND EXISTS (SELECT 1 FROM {stored.place} t "
            f"WHERE {stored.same_key('t', stage)} AND NOT COALESCE({at_home}, FALSE))",
        )

    def _bury(self, staged: StagedChanges) -> None:
        """Delete rows, and keep their tombstones beside the table."""
        stored, d = self._stored, self._stored.dialect
        stage = stored.stage(staged)
        dead = f"s.{d.quote(DELETED)} = TRUE AND s.{d.quote(CONTESTED)} = 0"
        of_home = f"{d.same_key('s', 't', [KEY])} AND {d.same_home('s', 't')}"
        stored.delete(stored.homes, f"{stage} s", f"{dead} AND {of_home}")
        columns = [KEY, *KEPT, *stored.table.key]
        stored.run(
            f"INSERT INTO {stored.homes} ({d.listed(columns)}) SELECT {d.listed(columns, 's.')} "
            f"FROM {stage} s WHERE {dead}",
        )
        if stored.policy.is_soft:
            update = Update(stored.place, str(staged.stage), stored.table.key, KEPT, dead)
            stored.run(d.update_of(update))
        else:
            stored.delete(stored.place, f"{stage} s", f"{dead} AND {stored.same_key('s', 't')}")
        self._checks.deleted(stage, dead, stored.alive)

    def _whole(self, prefix: str = "s.") -> str:
        """Return the condition that a staged row is a whole one that is upserted in bulk."""
        d = self._stored.dialect
        return f"{d.in_bulk(prefix)} AND {prefix}{d.quote(ABSENT)} IS NULL"

    def _delete_upserted(self, staged: StagedChanges) -> None:
        stored = self._stored
        where = f"{self._whole()} AND {stored.same_key('s', 't')}"
        stored.delete(stored.place, f"{stored.stage(staged)} s", where)

    def _upsert(self, staged: StagedChanges) -> None:
        """Upsert whole rows, then partial ones; those that meet another home are settled."""
        stored, d = self._stored, self._stored.dialect
        stage = stored.stage(staged)
        # Partial rows first: a row without stored values stops the batch before the others.
        for absent in staged.partial:
            self._lay_over(staged, absent)
        wanted = self._count(stage, self._whole(""))
        rows = StagedUpsert(stored.table, str(staged.stage), staged.columns, stored.kept)
        done = d.upsert(stored.connection, rows)
        if done < wanted:
            self._mark_foreign(stage, f"{d.quote(DELETED)} = FALSE")
            self.may_hide |= self._settling.settle([staged])
        if done < wanted or self._checks.are_needed:
            self._checks.written(stage, self._whole())

    def _lay_over(self, staged: StagedChanges, absent: tuple[str, ...]) -> None:
        """Update rows by staged ones that lack the columns `absent`."""
        stored, d = self._stored, self._stored.dialect
        stage, values = stored.stage(staged), {"absent": absent_text(absent)}
        mine = f"{d.in_bulk()} AND s.{d.quote(ABSENT)} = :absent"
        columns = [name for name in staged.columns if name not in {*absent, *stored.table.key}]
        kept = [name for name in stored.kept if name != HOME]
        update = Update(
            *(stored.place, str(staged.stage), stored.table.key, [*columns, *kept]),
            f"{mine}{stored.alive} AND {d.same_home('t', 's')}",
            values,
        )
        done = stored.run(d.update_of(update), values)
        wanted = self._count(stage, mine.replace("s.", ""), values)
        if done < wanted:
            done += self._lay_over_lineage(stage, update, f"{mine}{stored.alive}")
        self._checks.laid_over(stage, mine, values)
        if done == wanted:
            return
        if stored.policy.on_partial is OnPartial.INSERT_NULLS:
            which = f"{d.in_bulk('')} AND {d.quote(ABSENT)} = :absent AND {self._has_no_row(stage)}"
            stored.run(f"UPDATE {stage} SET {d.quote(ABSENT)} = NULL WHERE {which}", values)
            return
        [(key, shard, seq), *_] = stored.rows(
            f"SELECT {d.listed((KEY, SHARD, SEQ), 's.')} FROM {stage} s "
            f"WHERE {mine} AND {self._has_no_row('s')}",
            values,
        )
        raise CannotApply(
            f"{staged.database}.{staged.table}, key {key}, shard {shard}, seq {seq}: "
            f"the row image lacks {', '.join(sorted(absent))}, and the target has no row to take "
            f"them from. Copy the table again (`shardstream copy start`), or set "
            f"binlog_row_image=FULL and start a new target from a position after that. To store "
            f"NULL in them, start again with --partial insert-nulls"
        )

    def _has_no_row(self, staged: str) -> str:
        """Return the condition that a staged row has no stored one of its key and home."""
        stored = self._stored
        at_home = stored.dialect.same_home("t", staged)
        return (
            f"NOT EXISTS (SELECT 1 FROM {stored.place} t "
            f"WHERE {stored.same_key('t', staged)} AND {at_home}{stored.alive})"
        )

    def _lay_over_lineage(self, stage: str, update: Update, which: str) -> int:
        """Lay rows without a keyspace id over those of the shards that theirs came from."""
        stored, d = self._stored, self._stored.dialect
        home, shard = d.quote(HOME), d.quote(SHARD)
        which = f"{which} AND (t.{home} IS NULL OR s.{home} IS NULL)"
        found = stored.rows(
            f"SELECT DISTINCT t.{shard}, s.{shard} FROM {stored.place} t JOIN {stage} s "
            f"ON {stored.same_key('t', 's')} WHERE {which} AND t.{shard} <> s.{shard}",
            update.values,
        )
        done = 0
        for old, new in found:
            if range_of(old).overlaps(range_of(new)):
                of_both = f"{which} AND t.{shard} = :old AND s.{shard} = :new"
                values = {**update.values, "old": old, "new": new}
                changed = replace(update, where=of_both, values=values)
                done += stored.run(d.update_of(changed), values)
        return done

    def _show_hidden_rows(self) -> None:
        """Of each key whose visible row was removed, show the newest row that it had hidden."""
        stored, d = self._stored, self._stored.dialect
        q = d.quote
        hidden = stored.rows(
            f"SELECT {d.listed((KEY, TIME, SHARD, SEQ), 'h.')} FROM {stored.homes} h "
            f"WHERE h.{self._is_hidden} AND NOT EXISTS (SELECT 1 FROM {stored.place} t "
            f"WHERE {stored.same_key('t', 'h')}{stored.alive})",
        )
        newest = {row[0]: row for row in sorted(hidden, key=lambda row: row[1:])}
        columns = d.listed((*stored.table.columns, *stored.kept))
        mine = f"{q(KEY)} = :key AND {q(SHARD)} = :shard AND {q(SEQ)} = :seq AND {self._is_hidden}"
        for key, _, shard, seq in newest.values():
            values = {"key": key, "shard": shard, "seq": seq}
            if stored.policy.is_soft:
                where = f"h.{q(KEY)} = :key AND {stored.same_key('h', 't')}"
                stored.delete(stored.place, f"{stored.homes} h", where, {"key": key})
            insert = f"INSERT INTO {stored.place} ({columns}) SELECT {columns} FROM {stored.homes}"
            if stored.run(f"{insert} WHERE {mine}", values) == 0:
                raise self._checks.refusal(f"key {key}, shard {shard}, seq {seq}")
            stored.run(f"DELETE FROM {stored.homes} WHERE {mine}", values)

    def _count(self, stage: str, where: str, values: dict[str, str] | None = None) -> int:
        [(count,)] = self._stored.rows(f"SELECT COUNT(*) FROM {stage} WHERE {where}", values)
        return int(count)

    def _remove(self, at: Version) -> None:
        stored, q = self._stored, self._stored.dialect.quote
        where, values = self._older_there(at)
        stored.run(f"DELETE FROM {stored.homes} WHERE {where}", values)
        if stored.policy.is_soft:
            where = f"{q(DELETED)} = FALSE AND {where}"
            change = f"UPDATE {stored.place} SET {q(DELETED)} = TRUE WHERE {where}"
        else:
            change = f"DELETE FROM {stored.place} WHERE {where}"
        stored.run(change, values)
        self._checks.none_left(where, values)

    def _older_there(self, at: Version) -> tuple[str, dict[str, object]]:
        """Return the condition, and its values, that a row is at home on a shard and older."""
        stored, q = self._stored, self._stored.dialect.quote
        lower, upper = home_bounds(at.shard)
        shards = stored.rows(
            f"SELECT DISTINCT {q(SHARD)} FROM {stored.place} UNION "
            f"SELECT DISTINCT {q(SHARD)} FROM {stored.homes}",
        )
        own = range_of(at.shard)
        near = [shard for (shard,) in shards if range_of(shard).overlaps(own)]
        values: dict[str, object] = {
            "lower": lower,
            "shard": at.shard,
            "seq": at.seq,
            "time": at.timestamp_us,
            **{f"near{i}": shard for i, shard in enumerate(near)},
        }
        if upper is not None:
            values["upper"] = upper
        at_home = f"{q(HOME)} >= :lower" + ("" if upper is None else f" AND {q(HOME)} < :upper")
        listed = ", ".join(f":near{i}" for i in range(len(near))) or "NULL"
        where = (
            f"(({q(SHARD)} = :shard AND {q(SEQ)} < :seq) OR "
            f"({q(SHARD)} <> :shard AND {q(SHARD)} IN ({listed}) AND "
            f"(({at_home}) OR {q(HOME)} IS NULL) AND {q(TIME)} <= :time))"
        )
        return where, values
