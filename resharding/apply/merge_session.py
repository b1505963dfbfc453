"""The applier's session on a target with several sources: no row pushes another one away.

A row is inserted where nothing excludes it, by the target's own unique keys, and waits aside
otherwise (`resharding.aside`). Before each commit the rows that wait are tried again, if rows of
their table have gone. All that the target's log has of this are changes that the sources have made,
some of them later: a row that comes back follows a checkpoint of its source, like any other.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import pymysql

from databases.catalog import unique_keys
from databases.connection import error_code, error_text, is_transient, server_errors
from databases.internal_tables import ASIDE, CHECKPOINT, LAST_ASIDE, create_internal_tables
from databases.row_comparison import key_text
from databases.sql import beyond, quoted, rows, text_literal, value_literal
from event_token import KeyRange, StreamPosition
from resharding.apply.statements import (
    DELETE_ROWS_MAX,
    STATEMENT_ROWS_MAX,
    OwnRows,
    ReshardTargetTable,
    TargetStatement,
)
from resharding.apply.target_session import TargetSession, refused
from resharding.aside import (
    AsidePlace,
    AsideRow,
    aside_keys,
    aside_pages,
    last_aside_statement,
    put_aside_statement,
    remove_aside_statement,
)
from resharding.bookkeeping import Checkpoint
from resharding.errors import DoesNotApply
from resharding.routing import place_of
from resharding.servers import ReshardServer
from topics.keyspace.vindexes import Vindex
from topics.records.vevent import Row

# ER_DUP_ENTRY, ER_DUP_ENTRY_WITH_KEY_NAME.
_DUPLICATES: Final = frozenset((1062, 1586))
# Each is tried again at most commits. More of them are no rows that travel: then sources hold equal
# keys for good, and nothing but another reshard helps.
ASIDE_ROWS_MAX: Final = 100_000

_Table = tuple[str, str]


class MergeSession(TargetSession):
    """A session that sets rows aside; raises what any session raises.

    DoesNotApply also when more than ASIDE_ROWS_MAX rows wait aside.
    """

    def __init__(self, server: ReshardServer, reshard_id: str) -> None:
        """Connect and set the session."""
        super().__init__(server)
        self._reshard_id = reshard_id
        # All that wait, by the digests of their keys.
        self._aside: dict[AsidePlace, set[bytes]] = {}
        # Tables of which rows may have gone since those that wait were tried.
        self._freed: set[_Table] = set()
        self._has_set_aside = False

    @property
    def aside_rows(self) -> int:
        """How many rows wait aside."""
        return sum(map(len, list(self._aside.values())))  # another thread may set rows aside

    def checkpoints(self, reshard_id: str) -> dict[str, Checkpoint]:
        """The checkpoints on the target; then the rows that wait aside there."""
        # In this order: where another applier commits in between, the checkpoint gives it away.
        found = super().checkpoints(reshard_id)
        with server_errors(self.server, "reading what is set aside on"):
            keys = aside_keys(self.connection, reshard_id)
            if keys is None:
                create_internal_tables(self.connection, (ASIDE, LAST_ASIDE))
        self._aside = keys or {}
        self._freed = {(place.database, place.table) for place in self._aside}
        return found

    def run(self, statements: Sequence[TargetStatement]) -> None:
        """Execute statements in the open transaction; begin one if there is none."""
        super().run([each for one in statements for each in (*self._aside_ones(one), one)])

    def settle(self, position: StreamPosition) -> None:
        """Bring back what nothing excludes any more, at the end of a transaction.

        `position`: of the sources where it ends.
        """
        with server_errors(self.server, "applying to"):
            places = [at for at in self._aside if (at.database, at.table) in self._freed]
            for source in sorted({place.source for place in places}):
                # Their origin: the source's newest token, by an update that changes something.
                self._turn_checkpoint(source)
                for place in places:
                    if place.source == source:
                        self._bring_back(place)
                self._turn_checkpoint(source)
            if self._has_set_aside:
                self.connection.query(last_aside_statement(self._reshard_id, position))
        self._freed.clear()
        self._has_set_aside = False

    def empty(
        self, source: str, table: ReshardTargetTable, source_range: KeyRange, vindex: Vindex
    ) -> None:
        """Delete a source's rows of a table, and those that wait aside, in the open transaction.

        By the table's vindex, a row's source follows from its sharding value.
        """
        place = AsidePlace(source, table.database, table.table)
        name = f"{quoted(table.database)}.{quoted(table.table)}"
        with server_errors(self.server, "applying to"):
            if waiting := self._aside.pop(place, None):
                sql = remove_aside_statement(self._reshard_id, place, waiting)
                self.connection.query(sql)
            parts = unique_keys(self.connection, table.database, table.table).get("PRIMARY", ())
            key = [(part.column, False) for part in parts if part.column is not None]
            columns = ", ".join(quoted(column) for column, _ in key)
            after: tuple[str, ...] = ()
            while key:  # without one the table is gone on the target, too
                where = f"WHERE {beyond(key, after)}" if after else ""
                found = rows(
                    self.connection,
                    f"SELECT {quoted(table.sharding_column)}, {columns} FROM {name} {where} "
                    f"ORDER BY {columns} LIMIT {STATEMENT_ROWS_MAX}",
                )
                keys = [tuple(map(value_literal, row[1:])) for row in found]
                ids = [vindex.keyspace_id(row[0]) for row in found]
                own = [k for k, at in zip(keys, ids, strict=True) if source_range.contains(at)]
                for begin in range(0, len(own), DELETE_ROWS_MAX):
                    conditions = [
                        " AND ".join(f"{quoted(c)} = {v}" for (c, _), v in zip(key, k, strict=True))
                        for k in own[begin : begin + DELETE_ROWS_MAX]
                    ]
                    listed = " OR ".join(f"({condition})" for condition in conditions)
                    self.connection.query(f"DELETE FROM {name} WHERE {listed}")
                if len(found) < STATEMENT_ROWS_MAX:
                    break
                after = keys[-1]
        self._freed.add((table.database, table.table))

    def _turn_checkpoint(self, source: str) -> None:
        self.connection.query(
            f"UPDATE {CHECKPOINT} SET seq = -seq WHERE reshard_id = "
            f"{text_literal(self._reshard_id)} AND source_shard = {text_literal(source)}"
        )

    def _aside_ones(self, statement: TargetStatement) -> list[TargetStatement]:
        """The statement that removes a source's rows where they wait aside; none if none does."""
        own = statement.own
        if own is None:
            return []
        place = _place(own)
        waiting = self._aside.get(place)
        if not waiting:
            return []
        gone = {_digest(own, row) for row in own.rows} & waiting
        if not gone:
            return []
        self._drop(place, gone)
        sql = remove_aside_statement(self._reshard_id, place, gone)
        return [TargetStatement(sql, statement.first, statement.last)]

    def _drop(self, place: AsidePlace, digests: Iterable[bytes]) -> None:
        waiting = self._aside[place]
        waiting.difference_update(digests)
        if not waiting:
            del self._aside[place]

    def _check_changed(self, statement: TargetStatement, changed: int) -> None:
        super()._check_changed(statement, changed)
        own = statement.own
        if own is not None and not own.inserted and changed:
            self._freed.add((own.writer.target.database, own.writer.target.table))

    def _settles(self, statement: TargetStatement, error: pymysql.err.MySQLError) -> bool:
        """Insert those rows of a refused statement that nothing excludes; set aside the others."""
        own = statement.own
        if own is None or not own.inserted or error_code(error) not in _DUPLICATES:
            return False
        try:
            self._delete_own(own)
            writer = own.writer
            left = self._insert_what_fits(
                writer.whole([], upsert=True), own.parts, statement.error_labels
            )
            for i in left:
                self._set_aside(own, i, statement)
        except pymysql.err.MySQLError as other:
            if is_transient(other):
                raise
            raise refused(statement, self.server, other) from other
        return True

    def _delete_own(self, own: OwnRows) -> None:
        """Delete the source's own rows with these keys: a copied row may be ahead of the others."""
        conditions = [own.writer.delete_part(row) for row in own.rows]
        for begin in range(0, len(conditions), DELETE_ROWS_MAX):
            part = conditions[begin : begin + DELETE_ROWS_MAX]
            if self.connection.query(own.writer.whole(part, upsert=False)):
                self._freed.add((own.writer.target.database, own.writer.target.table))

    def _insert_what_fits(self, insert: str, parts: Sequence[str], error_labels: int) -> list[int]:
        """Insert rows, and return the places of those that others exclude."""
        left = []
        todo = [(0, len(parts))]
        while todo:
            begin, end = todo.pop()
            sql = insert + ", ".join(parts[begin:end])
            try:
                if error_labels:
                    self._query_leniently(sql)
                else:
                    self.connection.query(sql)
            except pymysql.err.MySQLError as error:
                if error_code(error) not in _DUPLICATES:
                    raise
                if end - begin == 1:
                    left.append(begin)
                else:
                    middle = (begin + end) // 2
                    todo += [(middle, end), (begin, middle)]
        return left

    def _set_aside(self, own: OwnRows, i: int, statement: TargetStatement) -> None:
        place, row = _place(own), own.rows[i]
        key = key_text(own.writer.key, [row[name] for name in own.writer.key])
        aside = AsideRow(
            *(place, _digest(own, row), key, own.writer.columns, own.parts[i]),
            statement.error_labels,
        )
        sql = put_aside_statement(self._reshard_id, aside)
        if len(sql) >= self.packet_bytes_max:
            raise DoesNotApply(
                f"{place_of(statement.first)}: {aside.name}, has to be set aside, which takes "
                f"{len(sql)} bytes as a statement: raise max_allowed_packet of the target above "
                f"that (it is {self.packet_bytes_max}) and start again"
            )
        self.connection.query(sql)
        self._aside.setdefault(place, set()).add(aside.digest)
        self._has_set_aside = True
        if self.aside_rows > ASIDE_ROWS_MAX:
            raise DoesNotApply(
                f"{place_of(statement.first)}: more than {ASIDE_ROWS_MAX} rows are excluded on the "
                f"target {self.server.name} by rows of other sources, as {aside.name}: several "
                f"sources hold the same keys or unique values. Cancel the reshard (shardstream "
                f"reshard cancel), resolve that on the sources, and create another one"
            )

    def _bring_back(self, place: AsidePlace) -> None:
        """Insert the rows of a place that nothing excludes any more."""
        for page in aside_pages(self.connection, self._reshard_id, place):
            groups: dict[tuple[str, int], list[AsideRow]] = {}
            for row in page:
                groups.setdefault((row.insert, row.error_labels), []).append(row)
            back = [row.digest for alike in groups.values() for row in self._inserted(alike)]
            if back:
                self.connection.query(remove_aside_statement(self._reshard_id, place, back))
                self._drop(place, back)

    def _inserted(self, alike: list[AsideRow]) -> list[AsideRow]:
        """Insert those of some rows, of the same columns, that nothing excludes; return them."""
        first = alike[0]
        parts = [row.values for row in alike]
        try:
            left = set(self._insert_what_fits(first.insert, parts, first.error_labels))
        except pymysql.err.MySQLError as error:
            if is_transient(error):
                raise
            raise DoesNotApply(
                f"{self.server.name}: a row that is set aside in {ASIDE} does not apply, "
                f"{first.name} or one behind it: {error_text(error)}. Fix the target, or "
                f"column_names and row_values there, and start again"
            ) from error
        return [row for i, row in enumerate(alike) if i not in left]


def _place(own: OwnRows) -> AsidePlace:
    return AsidePlace(own.source, own.writer.target.database, own.writer.target.table)


def _digest(own: OwnRows, row: Row) -> bytes:
    return hashlib.sha256(own.writer.key_part(row).encode()).digest()
