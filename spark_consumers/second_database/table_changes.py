"""Applies the staged changes of one batch to one table, in the caller's transaction."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from event_token.errors import Retry
from spark_consumers.applying.changes import (
    ABSENT,
    DELETED,
    HOME,
    KEY,
    SEQ,
    SHARD,
    TIME,
)
from spark_consumers.applying.homes import Version, range_of
from spark_consumers.applying.removals import home_bounds
from spark_consumers.applying.tables import Removal
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.errors import CannotApply
from spark_consumers.second_database.checks.taken_rows import TakenRows
from spark_consumers.second_database.dialect import Dialect, Update, rows_of, run
from spark_consumers.second_database.names import CONTESTED, KEPT, STORED, TargetTable
from spark_consumers.second_database.settling import settle_contested
from spark_consumers.second_database.staging import Staged, absent_text


class TableWriter:
    """Applies changes to one table."""

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        table: TargetTable,
        *,
        soft: bool,
        on_partial: OnPartial = OnPartial.STOP,
    ) -> None:
        """`soft`: rows that the source deleted stay, with `_deleted` true."""
        self._on_partial = on_partial
        self._connection = connection
        self._dialect = dialect
        self._table = table
        self._soft = soft
        self._place = dialect.table(table.schema, table.name)
        self._homes = dialect.internal(table.homes)
        self._taken = TakenRows(connection, dialect, table, soft=soft)
        self.may_hide = False  # whether the batch had to do with keys of several homes

    def apply(
        self, stages: Sequence[Staged], removals: Iterable[Removal], *, replace: bool
    ) -> None:
        """Apply statements that remove rows, then the rows of all tasks.

        `replace`: rows are deleted before they are inserted, so that values of unique indexes can
        move from row to row.
        """
        emptied = list(removals)
        for removal in emptied:
            self._remove(removal)
        if emptied and self._has_hidden_rows():
            self._show_hidden_rows()
        self.may_hide = bool(emptied)
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
        self._settle(with_rows)
        for staged in with_rows:
            if staged.rows > staged.tombstones:
                self._upsert(staged)

    def same_keys(self, limit: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return some keys that have several live rows, as JSON, and the shards of these."""
        d, key = self._dialect, self._table.key
        q = d.quote
        alive = f" AND t.{q(DELETED)} = FALSE" if self._soft else ""
        found: dict[str, set[str]] = {}
        for text, hidden, visible in rows_of(
            self._connection,
            f"SELECT h.{q(KEY)}, h.{q(SHARD)}, t.{q(SHARD)} FROM {self._homes} h "
            f"JOIN {self._place} t ON {d.same_key('t', 'h', key)}{alive} "
            f"WHERE h.{q(DELETED)} = FALSE LIMIT {limit}",
        ):
            found.setdefault(text, set()).update((hidden, visible))
        return [(text, tuple(sorted(shards))) for text, shards in found.items()]

    def expire(self, before_us: int) -> None:
        """Remove tombstones that are older."""
        q = self._dialect.quote
        run(
            self._connection,
            f"DELETE FROM {self._homes} WHERE {q(DELETED)} = TRUE AND {q(TIME)} < :before",
            {"before": before_us},
        )

    def _check_staged(self, staged: Staged) -> None:
        """Staging tables are not logged: after a crash of the server they are empty."""
        found = self._count("1 = 1", self._dialect.internal(staged.stage or ""))
        if found != staged.rows:
            raise Retry(
                f"{staged.database}.{staged.table}: {staged.rows - found} of {staged.rows} staged "
                f"rows are gone, the server has restarted: the batch must be staged again"
            )

    def _has_hidden_rows(self) -> bool:
        q = self._dialect.quote
        found = rows_of(
            self._connection, f"SELECT 1 FROM {self._homes} WHERE {q(DELETED)} = FALSE LIMIT 1"
        )
        return bool(found)

    def _mark_contested(self, staged: Staged, *, hides: bool, everywhere: bool) -> None:
        """Mark keys with hidden rows, and tombstones (or all rows) that meet another home."""
        d = self._dialect
        stage = d.internal(str(staged.stage))
        marked = f"UPDATE {stage} SET {d.quote(CONTESTED)} = 1 WHERE {d.quote(CONTESTED)} = 0"
        if hides:
            run(
                self._connection,
                f"{marked} AND EXISTS (SELECT 1 FROM {self._homes} h WHERE "
                f"h.{d.quote(KEY)} = {stage}.{d.quote(KEY)} AND h.{d.quote(DELETED)} = FALSE)",
            )
        if everywhere or staged.tombstones:
            which = "" if everywhere else f"AND {stage}.{d.quote(DELETED)} = TRUE "
            self._mark_foreign(marked, stage, which)

    def _mark_foreign(self, marked: str, stage: str, which: str = "") -> int:
        d, key = self._dialect, self._table.key
        return run(
            self._connection,
            f"{marked} {which}AND EXISTS (SELECT 1 FROM {self._place} t WHERE "
            f"{d.same_key('t', stage, key)} AND NOT COALESCE({d.same_home('t', stage)}, FALSE))",
        )

    def _settle(self, stages: Sequence[Staged]) -> None:
        self.may_hide |= settle_contested(
            self._connection, self._dialect, self._table, stages, soft=self._soft
        )

    def _bury(self, staged: Staged) -> None:
        """Delete rows, and keep their tombstones beside the table."""
        d, key = self._dialect, self._table.key
        stage = d.internal(str(staged.stage))
        dead = f"s.{d.quote(DELETED)} = TRUE AND s.{d.quote(CONTESTED)} = 0"
        d.delete_matching(
            *(self._connection, self._homes, f"{stage} s"),
            f"{dead} AND {d.same_key('s', 't', [KEY])} AND {d.same_home('s', 't')}",
        )
        columns = [KEY, *KEPT, *key]
        run(
            self._connection,
            f"INSERT INTO {self._homes} ({d.listed(columns)}) SELECT {d.listed(columns, 's.')} "
            f"FROM {stage} s WHERE {dead}",
        )
        if self._soft:
            update = Update(self._place, str(staged.stage), key, KEPT, dead)
            d.update_from(self._connection, update)
        else:
            where = f"{dead} AND {d.same_key('s', 't', key)}"
            d.delete_matching(self._connection, self._place, f"{stage} s", where)
        self._taken.check_deleted(stage, dead)

    def _delete_upserted(self, staged: Staged) -> None:
        d, key = self._dialect, self._table.key
        stage = d.internal(str(staged.stage))
        where = f"{d.in_bulk()} AND s.{d.quote(ABSENT)} IS NULL AND {d.same_key('s', 't', key)}"
        d.delete_matching(self._connection, self._place, f"{stage} s", where)

    def _upsert(self, staged: Staged) -> None:
        """Upsert whole rows, then partial ones; those that meet another home are settled."""
        d = self._dialect
        stage = d.internal(str(staged.stage))
        kept = KEPT if self._soft else STORED
        # Partial rows first: a row without stored values stops the batch before the others.
        for absent in staged.partial:
            self._lay_over(staged, absent)
        wanted = self._count(f"{d.in_bulk('')} AND {d.quote(ABSENT)} IS NULL", stage)
        done = d.upsert(self._connection, self._table, str(staged.stage), staged.columns, kept)
        if done < wanted:
            marked = f"UPDATE {stage} SET {d.quote(CONTESTED)} = 1 WHERE {d.quote(CONTESTED)} = 0"
            self._mark_foreign(marked, stage, f"AND {d.quote(DELETED)} = FALSE ")
            self._settle([staged])
        if done < wanted or self._taken.are_doubtful:
            self._taken.check_written(stage, f"{d.in_bulk()} AND s.{d.quote(ABSENT)} IS NULL")

    def _lay_over(self, staged: Staged, absent: tuple[str, ...]) -> None:
        d = self._dialect
        text = absent_text(absent)
        mine = f"{d.in_bulk()} AND s.{d.quote(ABSENT)} = :absent"
        columns = [name for name in staged.columns if name not in {*absent, *self._table.key}]
        kept = [name for name in (KEPT if self._soft else STORED) if name != HOME]
        alive = f"t.{d.quote(DELETED)} = FALSE AND " if self._soft else ""
        update = Update(
            *(self._place, str(staged.stage), self._table.key, [*columns, *kept]),
            f"{alive}{mine} AND {d.same_home('t', 's')}",
            {"absent": text},
        )
        done = d.update_from(self._connection, update)
        stage = d.internal(str(staged.stage))
        wanted = self._count(mine.replace("s.", ""), stage, {"absent": text})
        if done < wanted:
            done += self._lay_over_lineage(stage, update, f"{alive}{mine}")
        self._taken.check_laid_over(stage, mine, {"absent": text})
        if done == wanted:
            return
        without = (
            f"NOT EXISTS (SELECT 1 FROM {self._place} t WHERE {alive}"
            f"{d.same_key('t', stage, self._table.key)} AND {d.same_home('t', stage)})"
        )
        if self._on_partial is OnPartial.INSERT_NULLS:
            mine_too = f"{d.in_bulk('')} AND {d.quote(ABSENT)} = :absent AND {without}"
            whole = f"UPDATE {stage} SET {d.quote(ABSENT)} = NULL WHERE {mine_too}"
            run(self._connection, whole, {"absent": text})
            return
        [first, *_] = rows_of(
            self._connection,
            f"SELECT s.{d.quote(KEY)}, s.{d.quote(SHARD)}, s.{d.quote(SEQ)} FROM {stage} s "
            f"WHERE {mine} AND NOT EXISTS (SELECT 1 FROM {self._place} t WHERE {alive}"
            f"{d.same_key('t', 's', self._table.key)} AND {d.same_home('t', 's')})",
            {"absent": text},
        )
        raise CannotApply(
            f"{staged.database}.{staged.table}, key {first[0]}, shard {first[1]}, seq {first[2]}: "
            f"the row image lacks {', '.join(json.loads(text))}, and the target has no row to take "
            f"them from. Copy the table again (`shardstream copy start`), or set "
            f"binlog_row_image=FULL and start a new target from a position after that. To store "
            f"NULL in them, start again with --partial insert-nulls"
        )

    def _lay_over_lineage(self, stage: str, update: Update, which: str) -> int:
        """Lay rows without a keyspace id over those of the shards that theirs came from."""
        d = self._dialect
        home, shard = d.quote(HOME), d.quote(SHARD)
        which = f"{which} AND (t.{home} IS NULL OR s.{home} IS NULL)"
        found = rows_of(
            self._connection,
            f"SELECT DISTINCT t.{shard}, s.{shard} FROM {self._place} t JOIN {stage} s ON "
            f"{d.same_key('t', 's', self._table.key)} WHERE {which} AND t.{shard} <> s.{shard}",
            update.values,
        )
        done = 0
        for old, new in found:
            if range_of(old).overlaps(range_of(new)):
                of_both = f"{which} AND t.{shard} = :old AND s.{shard} = :new"
                values = {**(update.values or {}), "old": old, "new": new}
                changed = replace(update, where=of_both, values=values)
                done += d.update_from(self._connection, changed)
        return done

    def _show_hidden_rows(self) -> None:
        """Of each key whose visible row was removed, show the newest row that it had hidden."""
        d, key = self._dialect, self._table.key
        q = d.quote
        alive = f" AND t.{q(DELETED)} = FALSE" if self._soft else ""
        hidden = rows_of(
            self._connection,
            f"SELECT {d.listed((KEY, TIME, SHARD, SEQ), 'h.')} FROM {self._homes} h "
            f"WHERE h.{q(DELETED)} = FALSE AND NOT EXISTS (SELECT 1 FROM {self._place} t WHERE "
            f"{d.same_key('t', 'h', key)}{alive})",
        )
        newest = {row[0]: row for row in sorted(hidden, key=lambda row: row[1:])}
        columns = d.listed((*self._table.columns, *(KEPT if self._soft else STORED)))
        mine = (
            f"{q(KEY)} = :key AND {q(SHARD)} = :shard AND {q(SEQ)} = :seq AND {q(DELETED)} = FALSE"
        )
        for text, _, shard, seq in newest.values():
            values = {"key": text, "shard": shard, "seq": seq}
            if self._soft:
                d.delete_matching(
                    *(self._connection, self._place, f"{self._homes} h"),
                    f"h.{q(KEY)} = :key AND {d.same_key('h', 't', key)}",
                    {"key": text},
                )
            done = run(
                self._connection,
                f"INSERT INTO {self._place} ({columns}) SELECT {columns} FROM {self._homes} "
                f"WHERE {mine}",
                values,
            )
            if done == 0:
                raise self._taken.refusal(f"key {text}, shard {shard}, seq {seq}")
            run(self._connection, f"DELETE FROM {self._homes} WHERE {mine}", values)

    def _count(self, where: str, stage: str, values: dict[str, object] | None = None) -> int:
        [(count,)] = rows_of(
            self._connection, f"SELECT COUNT(*) FROM {stage} WHERE {where}", values
        )
        return int(count)

    def clear(self, column: str, at: Version) -> None:
        """Set a column to NULL in the rows that are older than its DROP on a shard."""
        where, values = self._older_there(at)
        name = self._dialect.quote(column)
        for place in (self._place, self._homes):
            clear = f"UPDATE {place} SET {name} = NULL WHERE {name} IS NOT NULL AND {where}"
            run(self._connection, clear, values)
        self._taken.check_none(f"{name} IS NOT NULL AND {where}", values)

    def _remove(self, removal: Removal) -> None:
        """Remove the stored rows of a shard that a TRUNCATE or DROP removed there."""
        q = self._dialect.quote
        where, values = self._older_there(removal.at)
        run(self._connection, f"DELETE FROM {self._homes} WHERE {where}", values)
        if self._soft:
            where = f"{q(DELETED)} = FALSE AND {where}"
            change = f"UPDATE {self._place} SET {q(DELETED)} = TRUE WHERE {where}"
        else:
            change = f"DELETE FROM {self._place} WHERE {where}"
        run(self._connection, change, values)
        self._taken.check_none(where, values)

    def _older_there(self, at: Version) -> tuple[str, dict[str, object]]:
        """Return the condition, and its values, that a row is at home on a shard and older."""
        q = self._dialect.quote
        lower, upper = home_bounds(at.shard)
        shards = rows_of(
            self._connection,
            f"SELECT DISTINCT {q(SHARD)} FROM {self._place} UNION "
            f"SELECT DISTINCT {q(SHARD)} FROM {self._homes}",
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
