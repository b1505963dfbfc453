"""The follower's own tables in the target: its position, and the tables that it fills.

| table | holds |
|---|---|
| `followers` | per follower: the options with which it began |
| `position` | per follower: query, last batch, position of the stream, frontier |
| `tables` | per table: where it lies, its columns, renamed columns, and whether it is whole |
| `rejected` | changes with values that the target cannot hold, if they are not to stop the query |
| `ended_copies` | shards whose copy of a table ended before it had a row |
| `same_keys` | keys that have live rows on several shards, if they are to stop the query |
| `lacking` | columns that shards lack, so that those that none has can be dropped |
| `homes_N` | of table N: hidden rows of keys with several homes, and tombstones |
| `stage_*` | the changes of one task of one batch, until the batch is applied |
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from sqlalchemy import Connection, inspect

from event_token import KeyRange, ShardName
from event_token.errors import UsageError
from event_token.key_range import covers
from event_token.position import StreamPosition
from sinks.database.dialect import Dialect, TargetTable, rows_of, run
from sinks.database.staging import Rejected
from sinks.resume import BatchStep, HeldBatch, PlannedBatch, step_of
from sinks.rule.columns import KnownTable, Lacking, as_json, of_json
from sinks.same_keys import SameKey
from topics.records.table_shape import TableShape, row_schema, schema_text, shape_of

TableName = tuple[str, str]  # database, table
# A key, as JSON, and the shards of its live rows.
SettledKey = tuple[str, tuple[str, ...]]
# What is known of a table: nothing was copied, its copy runs, it is whole, or a query did not
# follow it any more.
FOLLOWING, LOADING, COMPLETE, LEFT = "following", "loading", "complete", "left"


@dataclass(frozen=True, slots=True)
class KnownTarget:
    """A table of the target with its state and the old names of its columns."""

    table: TargetTable
    renames: Mapping[str, str]
    state: str
    ended: tuple[str, ...]

    def as_known(self) -> KnownTable:
        """What the rule has to know of it."""
        return KnownTable(self.table.shape, self.renames)


# Their columns; the types are those of `Dialect.meta_types`. The last one is created last.
_COLUMNS = {
    "position": "follower {name} PRIMARY KEY, query {name} NOT NULL, batch {long} NOT NULL, "
    "position {text} NOT NULL, frontier_us {long} NOT NULL, changes {long} NOT NULL",
    "followers": "follower {name} PRIMARY KEY, options {text} NOT NULL",
    "tables": "number {long} PRIMARY KEY, follower {name} NOT NULL, "
    "source_database {name} NOT NULL, source_table {name} NOT NULL, "
    "target_schema {name} NOT NULL, target_table {name} NOT NULL, state {name} NOT NULL, "
    "complete_at_us {long}, ended {text} NOT NULL, renames {text} NOT NULL, shape {text} NOT NULL, "
    "UNIQUE (target_schema, target_table)",
    "rejected": "follower {name} NOT NULL, source_database {name} NOT NULL, "
    "source_table {name} NOT NULL, source_key {text} NOT NULL, shard {name} NOT NULL, "
    "seq {long} NOT NULL, time_us {long} NOT NULL, token {text}, reason {text} NOT NULL",
    "same_keys": "follower {name} NOT NULL, source_database {name} NOT NULL, "
    "source_table {name} NOT NULL, source_key {text} NOT NULL, shards {text} NOT NULL",
    "ended_copies": "follower {name} NOT NULL, source_database {name} NOT NULL, "
    "source_table {name} NOT NULL, shard {name} NOT NULL",
    "lacking": "number {long} PRIMARY KEY, follower {name} NOT NULL, columns_of {text} NOT NULL",
}
_OF_TABLE = "source_database = :source_database AND source_table = :source_table"


class FollowerCatalog:
    """Reads and writes the follower's own tables, in the caller's transaction."""

    def __init__(self, dialect: Dialect, follower: str) -> None:
        """`follower`: the name under which positions and tables are kept."""
        self._dialect = dialect
        self._follower = follower
        self._places = {name: dialect.internal(name) for name in _COLUMNS}

    def create(self, connection: Connection) -> None:
        """Create the follower's own tables where they are missing."""
        dialect = self._dialect
        if self._has(connection, "lacking"):
            return
        dialect.create_schema(connection, dialect.internal_name("lacking")[0])
        for name, columns in _COLUMNS.items():
            is_numbered = "PRIMARY KEY" not in columns
            typed = columns.format_map(dialect.meta_types)
            dialect.create_own(connection, self._places[name], typed, is_numbered=is_numbered)

    def _has(self, connection: Connection, table: str) -> bool:
        schema, name = self._dialect.internal_name(table)
        return inspect(connection).has_table(name, schema=schema or None)

    def _select(
        self, connection: Connection, columns: str, table: str, more: str = ""
    ) -> list[Any]:
        query = f"SELECT {columns} FROM {self._places[table]} WHERE follower = :follower{more}"
        return rows_of(connection, query, {"follower": self._follower})

    def _insert(self, connection: Connection, table: str, **values: object) -> None:
        values = {"follower": self._follower, **values}
        marks = ", ".join(f":{name}" for name in values)
        run(
            connection,
            f"INSERT INTO {self._places[table]} ({', '.join(values)}) VALUES ({marks})",
            values,
        )

    def _change(self, connection: Connection, statement: str, **values: object) -> None:
        """Run a statement that ends with a condition on the follower's rows."""
        values = {"follower": self._follower, **values}
        run(connection, f"{statement} AND follower = :follower", values)

    def held(self, connection: Connection, *, locked: bool = False) -> HeldBatch | None:
        """Return the last batch that the target holds, None before the first one.

        `locked`: until the transaction ends, nobody else moves the position.
        """
        lock = " FOR UPDATE" if locked else ""
        found = self._select(connection, "query, batch, position", "position", lock)
        if not found:
            return None
        query, number, position = found[0]
        return HeldBatch(query, number, StreamPosition.from_string(position))

    def move(self, connection: Connection, batch: PlannedBatch, changes: int) -> bool:
        """Move the position over a batch of `changes`; False if the target holds the batch already.

        The row stays locked to the end of the transaction. TargetConflict if the batch does not
        begin where the target ends.
        """
        held = self.held(connection, locked=True)
        if step_of(self.where, held, batch) is BatchStep.REPLAY:
            return False
        values = {
            "query": batch.query_id,
            "batch": batch.batch_id,
            "position": batch.end.to_string(),
            "frontier_us": batch.end.frontier_us,
            "changes": changes,
        }
        if held is None:
            self._insert(connection, "position", **values)
        else:
            self._change(
                connection,
                f"UPDATE {self._places['position']} SET query = :query, batch = :batch, "
                f"position = :position, frontier_us = :frontier_us, "
                f"changes = changes + :changes WHERE TRUE",
                **values,
            )
        return True

    @property
    def where(self) -> str:
        """The target and the follower, for messages."""
        return f"{self._dialect.place} (follower '{self._follower}')"

    def applied(self, connection: Connection) -> tuple[int, int | None, int]:
        """Return how many changes were applied, up to which frontier, and how many rejected."""
        found = self._select(connection, "changes, frontier_us", "position")
        [(rejected,)] = self._select(connection, "COUNT(*)", "rejected")
        return (*found[0], rejected) if found else (0, None, 0)

    def reject(
        self, connection: Connection, source: TableName, rejected: Iterable[Rejected]
    ) -> None:
        """Store changes that the target cannot hold."""
        for each in rejected:
            values = asdict(each)
            self._insert(
                connection, "rejected", **_of(source), source_key=values.pop("key"), **values
            )

    def set_same_keys(
        self, connection: Connection, source: TableName, keys: Iterable[SettledKey]
    ) -> None:
        """Store the keys of a table that have live rows on several shards."""
        delete = f"DELETE FROM {self._places['same_keys']} WHERE {_OF_TABLE}"
        self._change(connection, delete, **_of(source))
        for key, shards in keys:
            self._insert(
                connection, "same_keys", **_of(source), source_key=key, shards=json.dumps(shards)
            )

    def same_keys(self, connection: Connection) -> tuple[int, tuple[SameKey, ...]]:
        """Return the frontier, and the keys that have live rows on several shards there."""
        found = rows_of(
            connection,
            f"SELECT p.frontier_us, k.source_database, k.source_table, k.source_key, k.shards "
            f"FROM {self._places['position']} p LEFT JOIN {self._places['same_keys']} k "
            f"ON k.follower = p.follower WHERE p.follower = :follower",
            {"follower": self._follower},
        )
        keys = (
            SameKey(f"{database}.{table}", key, tuple(json.loads(shards)))
            for _, database, table, key, shards in found
            if key is not None
        )
        return max((row[0] for row in found), default=0), tuple(keys)

    def settle_options(self, connection: Connection, options: Mapping[str, str]) -> None:
        """Store the options with which a follower began. UsageError if they change later."""
        text = json.dumps(options, sort_keys=True)
        found = self._select(connection, "options", "followers")
        if not found:
            self._insert(connection, "followers", options=text)
        elif found[0][0] != text:
            raise UsageError(
                f"{self.where} was begun with {found[0][0]} and cannot go on with {text}: use the "
                f"same options, or another database"
            )

    def options(self, connection: Connection) -> dict[str, str] | None:
        """Return the options with which the follower began; None if it has not."""
        if not self._has(connection, "followers"):
            return None
        found = self._select(connection, "options", "followers")
        return json.loads(found[0][0]) if found else None

    def tables(self, connection: Connection) -> dict[TableName, KnownTarget]:
        """Return the follower's tables by database and name of the source."""
        columns = (
            "number, source_database, source_table, target_schema, target_table, state, ended, "
            "renames, shape"
        )
        found = {}
        for row in self._select(connection, columns, "tables"):
            shape = cast("TableShape", shape_of(json.loads(row.shape)))
            table = TargetTable(row.number, row.target_schema, row.target_table, shape)
            renames, ended = json.loads(row.renames), tuple(json.loads(row.ended))
            found[row.source_database, row.source_table] = KnownTarget(
                table, renames, row.state, ended
            )
        return found

    def known(self, connection: Connection) -> dict[TableName, KnownTable]:
        """Return what the tasks need to know of the tables."""
        return {name: known.as_known() for name, known in self.tables(connection).items()}

    def add_table(
        self,
        connection: Connection,
        source: TableName,
        *,
        schema: str,
        name: str,
        shape: TableShape,
        state: str,
    ) -> TargetTable:
        """Register a new table. UsageError if another source's table lies there."""
        place = self._places["tables"]
        there = rows_of(
            connection,
            f"SELECT follower, source_database, source_table FROM {place} "
            f"WHERE target_schema = :schema AND target_table = :name",
            {"schema": schema, "name": name},
        )
        if there:
            raise UsageError(
                f"{source[0]}.{source[1]} would be written to {schema}.{name}, which holds "
                f"{there[0][1]}.{there[0][2]} of {there[0][0]}: give them different --schema"
            )
        [(number,)] = rows_of(connection, f"SELECT COALESCE(MAX(number), 0) + 1 FROM {place}")
        self._insert(
            connection,
            "tables",
            number=number,
            **_of(source),
            target_schema=schema,
            target_table=name,
            state=state,
            ended="[]",
            renames="{}",
            shape=_text(shape),
        )
        return TargetTable(number, schema, name, shape)

    def set_shape(
        self, connection: Connection, table: TargetTable, renames: Mapping[str, str]
    ) -> None:
        """Store the columns of a table and their old names."""
        self._change(
            connection,
            f"UPDATE {self._places['tables']} SET shape = :shape, renames = :renames "
            f"WHERE number = :number",
            shape=_text(table.shape),
            renames=json.dumps(renames),
            number=table.number,
        )

    def leave(self, connection: Connection, tables: Iterable[TableName]) -> None:
        """Store that these tables are not followed any more."""
        leave = f"UPDATE {self._places['tables']} SET state = :left WHERE {_OF_TABLE}"
        for source in tables:
            self._change(connection, f"{leave} AND state <> :left", left=LEFT, **_of(source))

    def end_copies(
        self,
        connection: Connection,
        known: KnownTarget,
        shards: Collection[str],
        whole: KeyRange,
        frontier_us: int,
    ) -> None:
        """Store whose copies have ended; a table is whole once they cover the key range."""
        ended = sorted({*known.ended, *shards})
        is_whole = covers((ShardName.parse(shard).key_range for shard in ended), whole)
        self._change(
            connection,
            f"UPDATE {self._places['tables']} SET ended = :ended, state = :state, "
            f"complete_at_us = COALESCE(complete_at_us, :at) WHERE number = :number",
            ended=json.dumps(ended),
            number=known.table.number,
            state=COMPLETE if is_whole else known.state,
            at=frontier_us if is_whole else None,
        )

    def ended_copies(self, connection: Connection) -> dict[TableName, set[str]]:
        """Return the shards whose copies ended before their table had a row, by table."""
        found: dict[TableName, set[str]] = {}
        columns = "source_database, source_table, shard"
        for database, table, shard in self._select(connection, columns, "ended_copies"):
            found.setdefault((database, table), set()).add(shard)
        return found

    def add_ended_copies(
        self, connection: Connection, source: TableName, shards: Collection[str]
    ) -> None:
        """Keep such shards: the target gets the table with its first row."""
        for shard in sorted(shards):
            self._insert(connection, "ended_copies", **_of(source), shard=shard)

    def remove_ended_copies(self, connection: Connection, source: TableName) -> None:
        """Forget the shards of a table, which the target has now."""
        delete = f"DELETE FROM {self._places['ended_copies']} WHERE {_OF_TABLE}"
        self._change(connection, delete, **_of(source))

    def lacking(self, connection: Connection) -> dict[int, Lacking]:
        """Return the columns that shards lack, by the number of their table."""
        found = self._select(connection, "number, columns_of", "lacking")
        return {number: of_json(json.loads(text)) for number, text in found}

    def set_lacking(
        self, connection: Connection, number: int, before: Lacking, now: Lacking
    ) -> None:
        """Store the columns of a table that shards lack, if they are others than before."""
        if as_json(now) == as_json(before):
            return
        delete = f"DELETE FROM {self._places['lacking']} WHERE number = :number"
        self._change(connection, delete, number=number)
        if now:
            text = json.dumps(as_json(now))
            self._insert(connection, "lacking", number=number, columns_of=text)

    def forget_lacking(self, connection: Connection) -> None:
        """Forget what shards lack: without the option nobody keeps it up to date."""
        self._change(connection, f"DELETE FROM {self._places['lacking']} WHERE TRUE")


def _of(source: TableName) -> dict[str, str]:
    return {"source_database": source[0], "source_table": source[1]}


def _text(shape: TableShape) -> str:
    return schema_text(cast("dict[str, object]", row_schema(shape, "")))
