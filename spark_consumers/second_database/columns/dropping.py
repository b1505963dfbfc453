"""Drops the columns that no live shard of the source has any more (`--drop-columns`)."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from sqlalchemy import Connection, inspect

from spark_consumers.applying.changes import KnownTable, Told
from spark_consumers.applying.shard_columns import (
    Lacking,
    as_json,
    followed,
    of_json,
    to_drop,
    without,
)
from spark_consumers.second_database.catalog import Catalog, KnownTarget
from spark_consumers.second_database.dialect import Dialect, rows_of, run
from spark_consumers.second_database.staging import Staged
from spark_consumers.second_database.table_changes import TableWriter
from spark_consumers.second_database.target_tables import names_of


class ColumnDropper:
    """Remembers which columns shards lack, in the caller's transaction."""

    def __init__(self, dialect: Dialect, catalog: Catalog, follower: str) -> None:
        """Keep what tells where the follower's tables are."""
        self._dialect = dialect
        self._catalog = catalog
        self._follower = follower
        self._place = dialect.internal("lacking")

    def create(self, connection: Connection) -> None:
        """Create the table of what shards lack, if it is missing."""
        schema, name = self._dialect.internal_name("lacking")
        if inspect(connection).has_table(name, schema=schema or None):
            return
        kinds = self._dialect.meta_types
        self._dialect.create_own(
            connection,
            self._place,
            f"number {kinds['long']} PRIMARY KEY, follower {kinds['name']} NOT NULL, "
            f"columns_of {kinds['text']} NOT NULL",
        )

    def forget(self, connection: Connection) -> None:
        """Forget what shards lack: without the option nobody keeps it up to date."""
        statement = f"DELETE FROM {self._place} WHERE follower = :follower"
        run(connection, statement, {"follower": self._follower})

    def follow(
        self,
        connection: Connection,
        staged: Iterable[Staged],
        live: Collection[str],
        *,
        soft: bool,
    ) -> None:
        """Remember what a batch tells, and clear the columns that a shard has added again."""
        told: dict[tuple[str, str], list[Told]] = {}
        for each in staged:
            if each.told:
                told.setdefault((each.database, each.table), []).append(each.told)
        lacking = self._read(connection)
        if not told and not lacking:
            return
        for source, known in self._catalog.tables(connection).items():
            before = lacking.get(known.table.number, {})
            if not before and source not in told:
                continue
            now, again = followed(before, told.get(source, ()), _known(known), live)
            writer = TableWriter(connection, self._dialect, known.table, soft=soft)
            for column, at in again:
                writer.clear(column, at)
            self._write(connection, known.table.number, before, now)

    def drop(self, connection: Connection, *, begun_only: bool = False) -> bool:
        """Drop the columns that no live shard has; tell whether there were some.

        `begun_only`: only those that one was about to drop when it was cut off, outside of a
        transaction: the catalog still has them, and statements that name them fail.
        """
        lacking = self._read(connection)
        held = self._catalog.held(connection, locked=True) if lacking else None
        if held is None:
            return False
        is_done = False
        for known in self._catalog.tables(connection).values():
            table = known.table
            of_table = lacking.get(table.number, {})
            places = (
                self._dialect.table(table.schema, table.name),
                self._dialect.internal(table.homes),
            )
            gone = to_drop(of_table, table.shape, held.position.shards)
            if begun_only and gone:
                left_of = [names_of(connection, place) for place in places]
                gone = [column for column in gone if any(column.lower() not in n for n in left_of)]
            if not gone:
                continue
            for column in gone:
                for place in places:
                    self._dialect.drop_column(connection, place, column)
            left = without(_known(known), gone)
            self._catalog.set_shape(connection, replace(table, shape=left.shape), left.renames)
            kept = {column: shards for column, shards in of_table.items() if column not in gone}
            self._write(connection, table.number, of_table, kept)
            is_done = True
        return is_done

    def _read(self, connection: Connection) -> dict[int, Lacking]:
        found = rows_of(
            connection,
            f"SELECT number, columns_of FROM {self._place} WHERE follower = :follower",
            {"follower": self._follower},
        )
        return {number: of_json(json.loads(text)) for number, text in found}

    def _write(self, connection: Connection, number: int, before: Lacking, now: Lacking) -> None:
        texts: Mapping[str, object] = {
            "number": number,
            "follower": self._follower,
            "text": json.dumps(as_json(now)),
        }
        if as_json(now) == as_json(before):
            return
        run(connection, f"DELETE FROM {self._place} WHERE number = :number", {"number": number})
        if now:
            run(
                connection,
                f"INSERT INTO {self._place} (number, follower, columns_of) "
                f"VALUES (:number, :follower, :text)",
                texts,
            )


def _known(known: KnownTarget) -> KnownTable:
    return KnownTable(known.table.shape, known.renames)
