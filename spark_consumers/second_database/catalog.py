"""The follower's own tables in the target: its position, and the tables that it fills.

| table | holds |
|---|---|
| `followers` | per follower: the options with which it began |
| `position` | per follower: query, last batch, position of the stream, frontier |
| `tables` | per table: where it lies, its columns, renamed columns, and whether it is whole |
| `rejected` | changes with values that the target cannot hold, if they are not to stop the query |
| `ended_copies` | shards whose copy of a table ended before it had a row (`ended_copies.py`) |
| `same_keys` | keys that have live rows on several shards, if they are to stop the query |
| `lacking` | columns that shards lack, so that those that none has can be dropped |
| `homes_N` | of table N: hidden rows of keys with several homes, and tombstones |
| `stage_*` | the changes of one task of one batch, until the batch is applied |
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import cast

from sqlalchemy import Connection, inspect

from event_token import KeyRange, ShardName
from event_token.errors import UsageError
from event_token.key_range import covers
from event_token.position import StreamPosition
from spark_consumers.applying.changes import KnownTable
from spark_consumers.second_database.bad_rows import Rejected
from spark_consumers.second_database.dialect import Dialect, rows_of, run
from spark_consumers.second_database.names import TargetTable
from spark_consumers.sink_query.resume import PlannedBatch, Step, TargetState, step_of
from spark_consumers.sink_query.same_keys import SameKey
from topics.records.table_shape import TableShape, row_schema, schema_text, shape_of

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


class Catalog:
    """Reads and writes the follower's own tables, in the caller's transaction."""

    def __init__(self, dialect: Dialect, follower: str) -> None:
        """Keep the dialect. `follower`: the name under which positions and tables are kept."""
        self._dialect = dialect
        self._follower = follower
        self._position = dialect.internal("position")
        self._tables = dialect.internal("tables")
        self._followers = dialect.internal("followers")
        self._rejected = dialect.internal("rejected")
        self._same_keys = dialect.internal("same_keys")

    def create(self, connection: Connection) -> None:
        """Create the follower's own tables where they are missing."""
        dialect = self._dialect
        schema, last = dialect.internal_name("same_keys")
        if inspect(connection).has_table(last, schema=schema or None):
            return
        dialect.create_schema(connection, schema)
        kinds = dialect.meta_types
        name, text, long = kinds["name"], kinds["text"], kinds["long"]
        dialect.create_own(
            connection,
            self._position,
            f"follower {name} PRIMARY KEY, "
            f"query {name} NOT NULL, batch {long} NOT NULL, position {text} NOT NULL, "
            f"frontier_us {long} NOT NULL, changes {long} NOT NULL",
        )
        dialect.create_own(
            connection,
            self._followers,
            f"follower {name} PRIMARY KEY, options {text} NOT NULL",
        )
        dialect.create_own(
            connection,
            self._tables,
            f"number {long} PRIMARY KEY, "
            f"follower {name} NOT NULL, source_database {name} NOT NULL, "
            f"source_table {name} NOT NULL, target_schema {name} NOT NULL, "
            f"target_table {name} NOT NULL, state {name} NOT NULL, complete_at_us {long}, "
            f"ended {text} NOT NULL, renames {text} NOT NULL, shape {text} NOT NULL, "
            f"UNIQUE (target_schema, target_table)",
        )
        dialect.create_own(
            connection,
            self._rejected,
            f"follower {name} NOT NULL, "
            f"source_database {name} NOT NULL, source_table {name} NOT NULL, "
            f"source_key {text} NOT NULL, shard {name} NOT NULL, seq {long} NOT NULL, "
            f"time_us {long} NOT NULL, token {text}, reason {text} NOT NULL",
            is_numbered=True,
        )
        dialect.create_own(
            connection,
            self._same_keys,
            f"follower {name} NOT NULL, "
            f"source_database {name} NOT NULL, source_table {name} NOT NULL, "
            f"source_key {text} NOT NULL, shards {text} NOT NULL",
            is_numbered=True,
        )

    def held(self, connection: Connection, *, locked: bool = False) -> TargetState | None:
        """Return the last batch that the target holds, None before the first one.

        `locked`: until the transaction ends, nobody else moves the position.
        """
        lock = self._dialect.row_lock if locked else ""
        if locked and not lock:
            statement = f"UPDATE {self._position} SET changes = changes WHERE follower = :follower"
            run(connection, statement, {"follower": self._follower})
        found = rows_of(
            connection,
            f"SELECT query, batch, position FROM {self._position} WHERE follower = :follower{lock}",
            {"follower": self._follower},
        )
        if not found:
            return None
        query, number, position = found[0]
        return TargetState(query, number, StreamPosition.from_string(position))

    def move(self, connection: Connection, batch: PlannedBatch, changes: int) -> bool:
        """Move the position over a batch of `changes`; False if the target holds the batch already.

        The row stays locked to the end of the transaction. TargetConflict if the batch does not
        begin where the target ends.
        """
        held = self.held(connection, locked=True)
        if step_of(self.where, held, batch) is Step.REPLAY:
            return False
        values = {
            "follower": self._follower,
            "query": batch.query_id,
            "batch": batch.batch_id,
            "position": batch.end.to_string(),
            "frontier": batch.end.frontier_us,
            "changes": changes,
        }
        if held is None:
            statement = (
                f"INSERT INTO {self._position} (follower, query, batch, position, frontier_us, "
                f"changes) VALUES (:follower, :query, :batch, :position, :frontier, :changes)"
            )
        else:
            statement = (
                f"UPDATE {self._position} SET query = :query, batch = :batch, "
                f"position = :position, frontier_us = :frontier, "
                f"changes = changes + :changes WHERE follower = :follower"
            )
        run(connection, statement, values)
        return True

    @property
    def where(self) -> str:
        """The target and the follower, for messages."""
        return f"{self._dialect.place} (follower '{self._follower}')"

    def applied(self, connection: Connection) -> tuple[int, int | None, int]:
        """Return how many changes were applied, up to which frontier, and how many rejected."""
        found = rows_of(
            connection,
            f"SELECT changes, frontier_us, (SELECT COUNT(*) FROM {self._rejected} r "
            f"WHERE r.follower = p.follower) FROM {self._position} p WHERE follower = :follower",
            {"follower": self._follower},
        )
        return (found[0][0], found[0][1], found[0][2]) if found else (0, None, 0)

    def reject(
        self, connection: Connection, source: tuple[str, str], rejected: Iterable[Rejected]
    ) -> None:
        """Store changes that the target cannot hold."""
        for each in rejected:
            run(
                connection,
                f"INSERT INTO {self._rejected} (follower, source_database, source_table, "
                f"source_key, shard, seq, time_us, token, reason) VALUES (:follower, :database, "
                f":table, :key, :shard, :seq, :time_us, :token, :reason)",
                {
                    "follower": self._follower,
                    "database": source[0],
                    "table": source[1],
                    **asdict(each),
                },
            )

    def set_same_keys(
        self, connection: Connection, source: tuple[str, str], keys: Iterable[SettledKey]
    ) -> None:
        """Store the keys of a table that have live rows on several shards."""
        table = {"follower": self._follower, "database": source[0], "table": source[1]}
        run(
            connection,
            f"DELETE FROM {self._same_keys} WHERE follower = :follower AND "
            f"source_database = :database AND source_table = :table",
            table,
        )
        for key, shards in keys:
            run(
                connection,
                f"INSERT INTO {self._same_keys} (follower, source_database, source_table, "
                f"source_key, shards) VALUES (:follower, :database, :table, :key, :shards)",
                {**table, "key": key, "shards": json.dumps(shards)},
            )

    def same_keys(self, connection: Connection) -> tuple[int, tuple[SameKey, ...]]:
        """Return the frontier, and the keys that have live rows on several shards there."""
        found = rows_of(
            connection,
            f"SELECT p.frontier_us, k.source_database, k.source_table, k.source_key, k.shards "
            f"FROM {self._position} p LEFT JOIN {self._same_keys} k ON k.follower = p.follower "
            f"WHERE p.follower = :follower",
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
        name = {"follower": self._follower}
        found = rows_of(
            connection, f"SELECT options FROM {self._followers} WHERE follower = :follower", name
        )
        if not found:
            values = {**name, "options": text}
            run(connection, f"INSERT INTO {self._followers} VALUES (:follower, :options)", values)
        elif found[0][0] != text:
            raise UsageError(
                f"{self.where} was begun with {found[0][0]} and cannot go on with {text}: use the "
                f"same options, or another database"
            )

    def options(self, connection: Connection) -> dict[str, str] | None:
        """Return the options with which the follower began; None if it has not."""
        schema, last = self._dialect.internal_name("followers")
        if not inspect(connection).has_table(last, schema=schema or None):
            return None
        found = rows_of(
            connection,
            f"SELECT options FROM {self._followers} WHERE follower = :follower",
            {"follower": self._follower},
        )
        return json.loads(found[0][0]) if found else None

    def tables(self, connection: Connection) -> dict[tuple[str, str], KnownTarget]:
        """Return the follower's tables by database and name of the source."""
        found = {}
        for row in rows_of(
            connection,
            f"SELECT number, source_database, source_table, target_schema, target_table, state, "
            f"ended, renames, shape FROM {self._tables} WHERE follower = :follower",
            {"follower": self._follower},
        ):
            shape = cast("TableShape", shape_of(json.loads(row.shape)))
            table = TargetTable(row.number, row.target_schema, row.target_table, shape)
            known = KnownTarget(
                table, json.loads(row.renames), row.state, (*json.loads(row.ended),)
            )
            found[row.source_database, row.source_table] = known
        return found

    def known(self, connection: Connection) -> dict[tuple[str, str], KnownTable]:
        """Return what the tasks need to know of the tables."""
        return {
            name: KnownTable(known.table.shape, known.renames)
            for name, known in self.tables(connection).items()
        }

    def add_table(
        self,
        connection: Connection,
        source: tuple[str, str],
        *,
        schema: str,
        name: str,
        shape: TableShape,
        state: str,
    ) -> TargetTable:
        """Register a new table. UsageError if another source's table lies there."""
        there = rows_of(
            connection,
            f"SELECT follower, source_database, source_table FROM {self._tables} "
            f"WHERE target_schema = :schema AND target_table = :name",
            {"schema": schema, "name": name},
        )
        if there:
            raise UsageError(
                f"{source[0]}.{source[1]} would be written to {schema}.{name}, which holds "
                f"{there[0][1]}.{there[0][2]} of {there[0][0]}: give them different --schema"
            )
        [(number,)] = rows_of(
            connection, f"SELECT COALESCE(MAX(number), 0) + 1 FROM {self._tables}"
        )
        run(
            connection,
            f"INSERT INTO {self._tables} VALUES (:number, :follower, :database, :table, :schema, "
            f":name, :state, NULL, '[]', '{{}}', :shape)",
            {
                "number": number,
                "follower": self._follower,
                "schema": schema,
                "name": name,
                "database": source[0],
                "table": source[1],
                "state": state,
                "shape": _text(shape),
            },
        )
        return TargetTable(number, schema, name, shape)

    def set_shape(
        self, connection: Connection, table: TargetTable, renames: Mapping[str, str]
    ) -> None:
        """Store the columns of a table and their old names."""
        run(
            connection,
            f"UPDATE {self._tables} SET shape = :shape, renames = :renames WHERE number = :number",
            {"shape": _text(table.shape), "renames": json.dumps(renames), "number": table.number},
        )

    def leave(self, connection: Connection, tables: Iterable[tuple[str, str]]) -> None:
        """Store that these tables are not followed any more."""
        for database, table in tables:
            run(
                connection,
                f"UPDATE {self._tables} SET state = :left WHERE follower = :follower AND "
                f"source_database = :database AND source_table = :table AND state <> :left",
                {"left": LEFT, "follower": self._follower, "database": database, "table": table},
            )

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
        run(
            connection,
            f"UPDATE {self._tables} SET ended = :ended, state = :state, "
            f"complete_at_us = COALESCE(complete_at_us, :at) WHERE number = :number",
            {
                "ended": json.dumps(ended),
                "number": known.table.number,
                "state": COMPLETE if is_whole else known.state,
                "at": frontier_us if is_whole else None,
            },
        )


def _text(shape: TableShape) -> str:
    return schema_text(cast("dict[str, object]", row_schema(shape)))
