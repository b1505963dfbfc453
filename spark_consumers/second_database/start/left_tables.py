"""Tables that a target has and a query does not follow: afterwards they lack changes."""

from collections.abc import Collection

from event_token.errors import UsageError
from spark_consumers.second_database.catalog import LEFT, Catalog
from spark_consumers.second_database.urls import dialect_of

Name = tuple[str, str]  # database, table


def left_tables(url: str, follower: str, tables: Collection[Name]) -> tuple[Name, ...]:
    """Return the tables that the target has and a query for `tables` (empty: all) leaves out.

    UsageError if it follows one that an earlier query has left out: the changes since then are not
    in it, and no reader could tell.
    """
    dialect = dialect_of(url)
    catalog = Catalog(dialect, follower)
    with dialect.connected() as connection:
        known = catalog.tables(connection)
    chosen = known.keys() & set(tables) if tables else known.keys()
    for name in sorted(chosen):
        if known[name].state == LEFT:
            table = known[name].table
            raise UsageError(
                f"{catalog.where}: an earlier run left out {'.'.join(name)} (--table), so its "
                f"table lacks the changes since then. Name the other tables with --table. To "
                f"follow it again, drop {dialect.table(table.schema, table.name)} and "
                f"{dialect.internal(table.homes)}, delete its row from "
                f"{dialect.internal('tables')}, start, and copy the table again"
            )
    return tuple(sorted(known.keys() - chosen))
