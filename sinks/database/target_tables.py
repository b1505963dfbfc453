"""Creates the target's tables and lets their columns follow those of the source.

With `--drop-columns` it also drops those that no live shard of the source has any more.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sqlalchemy import Connection, inspect, text

from event_token.errors import UsageError
from sinks.database.catalog import FOLLOWING, LOADING, FollowerCatalog, KnownTarget
from sinks.database.dialect import INTERNAL, KEPT, STORED, Dialect, TargetTable
from sinks.database.options import DatabaseOptions
from sinks.database.staging import StagedChanges
from sinks.database.table_changes import TableWriter
from sinks.rule.columns import (
    AddColumn,
    ColumnReport,
    Rename,
    Step,
    Widen,
    followed,
    known_names,
    plan,
    to_drop,
    united,
    without,
)
from sinks.rule.homes import KEY
from topics.errors import ShapeConflict
from topics.records.table_shape import Column, TableShape


class TargetTables:
    """Creates and alters tables, and remembers what shards lack, in the caller's transaction."""

    def __init__(self, dialect: Dialect, catalog: FollowerCatalog, policy: DatabaseOptions) -> None:
        self._dialect = dialect
        self._catalog = catalog
        self._policy = policy

    def fit(
        self,
        connection: Connection,
        source: tuple[str, str],
        known: KnownTarget | None,
        *,
        shapes: Sequence[TableShape],
        renames: Sequence[tuple[str, str, str]],
    ) -> TargetTable:
        """Return the table with all columns that the batch has; ShapeConflict if none can fit."""
        steps: Sequence[Step]
        if known is None:
            shape = TableShape(source[0], source[1], ())
            for version in shapes:
                shape = united(shape, version)
            return self._create(connection, source, shape)
        now = known.table
        if not self._dialect.has_transactional_ddl:
            self._complete(connection, now)
        steps = plan(now.shape, shapes, renames)
        if not self._dialect.has_transactional_ddl:
            _check_repeatable(now, steps)
        if not steps:
            return now
        for step in steps:
            now = self._step(connection, now, step)
        self._catalog.set_shape(connection, now, known_names(known.renames, renames))
        return now

    def _create(
        self, connection: Connection, source: tuple[str, str], shape: TableShape
    ) -> TargetTable:
        dialect, schema = self._dialect, self._policy.schema
        if schema is None:
            schema = dialect.schema_of(source[0])
        state = LOADING if self._policy.is_loading else FOLLOWING
        if schema:
            dialect.create_schema(connection, schema)
        table = self._catalog.add_table(
            connection, source, schema=schema, name=source[1], shape=shape, state=state
        )
        if inspect(connection).has_table(table.name, schema=schema or None):
            raise UsageError(
                f"table {'.'.join(filter(None, (schema, table.name)))} exists in the target and "
                f"was not created for this stream: rename it, or give another --schema"
            )
        self._create_both(connection, table)
        return table

    def _complete(self, connection: Connection, table: TargetTable) -> None:
        """Create what a batch that was cut off did not; the table of homes comes last."""
        schema, homes = self._dialect.internal_name(table.homes)
        if not inspect(connection).has_table(homes, schema=schema or None):
            self._create_both(connection, table)

    def _create_both(self, connection: Connection, table: TargetTable) -> None:
        dialect = self._dialect
        columns = self._columns(table.shape)
        own = dialect.meta_columns(KEPT if self._policy.is_soft else STORED)
        dialect.create_table(
            connection, dialect.table(table.schema, table.name), columns | own, table.key
        )
        homes = dialect.meta_columns((KEY, *KEPT))
        dialect.create_homes(connection, table, columns | homes)

    def _columns(self, shape: TableShape) -> dict[str, str]:
        key = {shape.columns[i].name for i in shape.primary_key}
        return {
            column.name: self._dialect.type_of(column, is_key=column.name in key)
            for column in shape.columns
        }

    def _step(self, connection: Connection, table: TargetTable, step: Step) -> TargetTable:
        dialect = self._dialect
        # The table of homes comes first: a column that the other one has alone is somebody else's.
        places = (
            dialect.internal(table.homes),
            dialect.table(table.schema, table.name),
        )
        columns = list(table.shape.columns)
        key = set(table.key)
        match step:
            case AddColumn(column):
                self._check_free(connection, table, column.name)
                for place in places:
                    dialect.add_column(connection, place, column)
                columns.append(column)
            case Widen(before, after):
                is_key = before.name in key
                if dialect.type_of(before, is_key=is_key) != dialect.type_of(after, is_key=is_key):
                    for place in places:
                        dialect.widen_column(connection, place, after, is_key=is_key)
                columns = [after if c.name == before.name else c for c in columns]
            case Rename(old, new):
                self._check_free(connection, table, new, old)
                for place in places:
                    dialect.rename_column(connection, place, old, new)
                columns = [replace(c, name=new) if c.name == old else c for c in columns]
        return replace(table, shape=_with_columns(table.shape, columns))

    def _check_free(
        self, connection: Connection, table: TargetTable, name: str, old: str = ""
    ) -> None:
        """UsageError if somebody else has given a column of the table this name.

        A batch that was cut off outside of a transaction may have: then the table of homes has it.
        `old`: the name that the column itself has.
        """
        dialect = self._dialect
        new = name.lower()
        if new == old.lower():
            return
        there = names_of(connection, dialect.table(table.schema, table.name))
        if new in there and new not in names_of(connection, dialect.internal(table.homes)):
            raise UsageError(
                f"table {'.'.join(filter(None, (table.schema, table.name)))} of the target has a "
                f"column '{name}' that was not made for this stream, and the source has one of "
                f"that name now: rename or drop the target's, and start again"
            )

    def follow(
        self,
        connection: Connection,
        staged: Iterable[StagedChanges],
        live: Collection[str],
    ) -> None:
        """Remember which columns shards lack, and clear those that a shard has added again."""
        reports: dict[tuple[str, str], list[ColumnReport]] = {}
        for each in staged:
            if each.report:
                reports.setdefault((each.database, each.table), []).append(each.report)
        lacking = self._catalog.lacking(connection)
        if not reports and not lacking:
            return
        for source, known in self._catalog.tables(connection).items():
            before = lacking.get(known.table.number, {})
            if not before and source not in reports:
                continue
            now, again = followed(before, reports.get(source, ()), known.as_known(), live)
            writer = TableWriter(connection, self._dialect, known.table, self._policy)
            for column, at in again:
                writer.clear(column, at)
            self._catalog.set_lacking(connection, known.table.number, before, now)

    def drop(self, connection: Connection, *, begun_only: bool = False) -> bool:
        """Drop the columns that no live shard has; return whether there were some.

        `begun_only`: only those that one was about to drop when it was cut off, outside of a
        transaction: the catalog still has them, and statements that name them fail.
        """
        lacking = self._catalog.lacking(connection)
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
            left = without(known.as_known(), gone)
            self._catalog.set_shape(connection, replace(table, shape=left.shape), left.renames)
            kept = {column: shards for column, shards in of_table.items() if column not in gone}
            self._catalog.set_lacking(connection, table.number, of_table, kept)
            is_done = True
        return is_done


def names_of(connection: Connection, place: str) -> set[str]:
    """Return the columns of a quoted table, in lower case."""
    found = connection.execute(text(f"SELECT * FROM {place} WHERE 1 = 0"))
    return {name.lower() for name in found.keys()}  # noqa: SIM118 - it has rows


def _check_repeatable(table: TargetTable, steps: Sequence[Step]) -> None:
    """ShapeConflict if columns would exchange names outside of the batch's transaction.

    If the batch were run again, they would exchange them back.
    """
    held = {column.name.lower() for column in table.shape.columns}
    for step in steps:
        if isinstance(step, Rename) and step.new.lower() in held - {step.old.lower()}:
            raise ShapeConflict(
                f"table {table.schema}.{table.name}: column {step.old} gets the name {step.new}, "
                f"which another column had until the same batch. The ALTERs of this database end "
                f"its transactions, so a batch that runs again could exchange them back. Drop the "
                f"target's tables and those of {INTERNAL}, and start again with --from copy"
            )


def _with_columns(shape: TableShape, columns: Sequence[Column]) -> TableShape:
    return replace(shape, columns=tuple(columns))
