"""Filter rules, turned into the decoder's plans for the rows of each table version."""

from collections.abc import Callable, Mapping

from producers.decoder.tables.plan import NO_ROW_END, FilterPlan, MaskedColumn, RangeTest, TablePlan
from producers.decoder.tables.server_columns import written_plan
from producers.decoder.tables.sharding import ShardingColumn
from producers.decoder.values import operations as ops
from producers.filters.binding import BoundRule, bind_rule
from producers.filters.collations import collation_name
from producers.filters.rules import FilterSettings
from producers.filters.source_column import SourceColumn


class TableFilters:
    """The rules of one stream; implements the decoder's `FilterRules`."""

    def __init__(
        self,
        settings: FilterSettings,
        vindexes: Mapping[tuple[str, str], ShardingColumn],
        check_tables: Callable[[], None] | None = None,
    ) -> None:
        """`vindexes`: the sharding columns, which in_keyrange uses and masks may not hide.

        `check_tables` is called after a DDL; it raises if the rules do not fit the server's tables.
        """
        self._check_tables = check_tables
        self._settings = settings
        self._vindexes = vindexes

    def definitions_changed(self) -> None:
        """Check that the rules still fit the tables, which may have changed."""
        if self._check_tables is not None:
            self._check_tables()

    def leaves_out(self, database: str, table: str) -> bool:
        """Tell whether no row of the table is wanted."""
        return not self._settings.includes(database, table)

    def leaves_out_database(self, database: str) -> bool:
        """Tell whether surely no table of the database is wanted."""
        return self._settings.leaves_out_database(database)

    def filter_plan(self, table: TablePlan) -> FilterPlan | None:
        """Return what to do with the table's rows; RuleError where its rule does not fit it."""
        rule = self._settings.rule_for(table.database, table.table)
        if rule is None:
            return None
        sharding = self._vindexes.get((table.database, table.table))
        bound = bind_rule(
            rule,
            source_columns(table),
            # Without row_end readers could not tell present rows from history.
            [*table.primary_key, *([] if table.row_end == NO_ROW_END else [int(table.row_end)])],
            None if sharding is None else (sharding.column, sharding.vindex),
            self._settings.hmac_key,
        )
        return _filter_plan(table, bound)


def source_columns(table: TablePlan) -> list[SourceColumn]:
    """Return the columns of a table version as rules see them."""
    return [
        SourceColumn(
            shape_column,
            collation_name(int(plan.collation), plan.charset) if plan.collation else "",
            plan.nullable,
            shape_column.sql_type if plan.op >= ops.UUID else "",
        )
        for plan, shape_column in zip(table.columns, table.shape_columns, strict=True)
    ]


def _filter_plan(table: TablePlan, bound: BoundRule) -> FilterPlan:
    outputs = bound.outputs
    written = written_plan(
        table, [each.index for each in outputs], [each.column for each in outputs]
    )
    columns = [
        MaskedColumn(table.columns[output.index], column, output.mask)
        for output, column in zip(outputs, written.columns, strict=True)
    ]
    where = bound.where
    return FilterPlan(
        table,
        written,
        columns,
        ranges=[
            RangeTest(table.columns[each.column], each.low, each.high) for each in bound.ranges
        ],
        predicate=None if where is None else where.predicate,
        predicate_columns=[] if where is None else [table.columns[i] for i in where.columns],
    )
