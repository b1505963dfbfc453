"""The sharding column of a table version, from which its vindex computes keyspace ids."""

from dataclasses import dataclass

from event_token.errors import UsageError
from producers.decoder.errors import NoKeyspaceId
from producers.decoder.tables.plan import TablePlan
from producers.decoder.tables.server_columns import left_out
from topics.keyspace.vindexes import Vindex


@dataclass(frozen=True)
class ShardingColumn:
    """The column that a table is sharded by, and the vindex over it."""

    column: str
    vindex: Vindex


def set_vindex(plan: TablePlan, sharding: ShardingColumn | None) -> None:
    """Mark the sharding column of a table version. NoKeyspaceId when the vindex rejects it."""
    if sharding is None:
        return
    name = sharding.column.lower()  # column names ignore case
    for i, (column, shape_column) in enumerate(zip(plan.columns, plan.shape_columns, strict=True)):
        if column.name.lower() == name and i not in plan.hidden:
            try:
                sharding.vindex.check_column(shape_column)
            except UsageError as error:
                raise NoKeyspaceId(f"table {plan.database}.{plan.table}: {error}") from error
            column.is_sharding = True
            column.is_noted = True
            plan.vindex = sharding.vindex
            plan.sharding = shape_column
            plan.sharding_plan = column
            return
    raise NoKeyspaceId(
        f"table {plan.database}.{plan.table} has no column {sharding.column}, over which its "
        f"vindex {sharding.vindex.name} is declared; it has "
        f"{', '.join(c.name for i, c in enumerate(plan.columns) if i not in plan.hidden)}"
        f"{left_out(plan.columns[i].name for i in plan.hidden)}"
    )
