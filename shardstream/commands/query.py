"""`shardstream query`: SQL over a change log, without Spark."""

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from rich.console import Console
from rich.table import Table

from event_token.errors import UsageError

# More than a terminal shows; larger results are for programs.
ROWS_MAX = 1_000


def run_query(path: str, sql: str) -> None:
    """Run `sql` over the Delta table, named `log`, and print the result."""
    try:
        table = DeltaTable(path)
        result = pa.table(QueryBuilder().register("log", table).execute(sql).read_all())
    except TableNotFoundError as error:
        message = f"{path} is not a Delta table; name the target of `shardstream changelog`"
        raise UsageError(message) from error
    except (DeltaError, ValueError) as error:
        raise UsageError(f"the query failed: {error}") from error
    shown = Table()
    for name in result.column_names:
        shown.add_column(name)
    for row in result.slice(0, ROWS_MAX).to_pylist():
        shown.add_row(*(str(value) for value in row.values()))
    console = Console(highlight=False)
    console.print(shown)
    if result.num_rows > ROWS_MAX:
        console.print(f"first {ROWS_MAX} of {result.num_rows} rows")
