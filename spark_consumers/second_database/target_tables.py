"""Creates the target's tables and lets their columns follow those of the source."""

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import Connection, inspect, text

from event_token.errors import UsageError
from spark_consumers.applying.changes import KEY
from spark_consumers.applying.evolution import (
    AddColumn,
    Rename,
    Step,
    Widen,
    known_names,
    plan,
    united,
)
from spark_consumers.errors import ShapeConflict
from spark_consumers.second_database.catalog import Catalog, KnownTarget
from spark_consumers.second_database.dialect import Dialect
from spark_consumers.second_database.names import INTERNAL, KEPT, STORED, TargetTable
from topics.records.table_shape import Column, TableShape


class TargetTables:
    """Creates and alters tables in the caller's transaction."""

    def __init__(
        self, dialect: Dialect, catalog: Catalog, *, schema: str | None, soft: bool
    ) -> None:
        """`schema`: where all tables go, None: to schemas named as the source's databases."""
        self._dialect = dialect
        self._catalog = catalog
        self._schema = schema
        self._soft = soft

    @property
    def kept(self) -> tuple[str, ...]:
        """The follower's own columns of the tables."""
        return KEPT if self._soft else STORED

    def fit(
        self,
        connection: Connection,
        source: tuple[str, str],
        known: KnownTarget | None,
        *,
        shapes: Sequence[TableShape],
        renames: Sequence[tuple[str, str, str]],
        state: str,
    ) -> TargetTable:
        """Return the table with all columns that the batch has; ShapeConflict if none can fit."""
        steps: Sequence[Step]
        if known is None:
            shape = TableShape(source[0], source[1], ())
            for version in shapes:
                shape = united(shape, version)
            return self._create(connection, source, shape, state)
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
        self, connection: Connection, source: tuple[str, str], shape: TableShape, state: str
    ) -> TargetTable:
        dialect = self._dialect
        schema = dialect.schema_of(source[0]) if self._schema is None else self._schema
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
        dialect.check_columns(connection, shape.columns)
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
        own = dialect.meta_columns(self.kept)
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
                dialect.check_columns(connection, [column])
                for place in places:
                    dialect.add_column(connection, place, column)
                columns.append(column)
            case Widen(before, after):
                dialect.check_columns(connection, [after])
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
