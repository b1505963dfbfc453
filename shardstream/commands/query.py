"""`shardstream query`: SQL over a change log, without Spark."""

from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from event_token.errors import UsageError
from shardstream.commands.options import CommandLine

# More than a terminal shows; larger results are for programs.
ROWS_MAX: Final = 1_000

app = CommandLine()


@app.command()
def query(
    path: Annotated[str, typer.Argument(help="Folder or URL of the Delta table")],
    sql: Annotated[str, typer.Argument(help="SQL; the table is named log")],
) -> None:
    """Query a change log with SQL, without Spark."""
    # These come with an extra, which may be missing.
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(path)
        result = pa.table(QueryBuilder().register("log", table).execute(sql).read_all())
    except TableNotFoundError as error:
        raise UsageError(
            f"{path} is not a Delta table; name the target of `shardstream changelog`"
        ) from error
    except (DeltaError, ValueError) as error:
        raise UsageError(f"the query failed: {error}") from error
    shown = Table(*result.column_names)
    for row in result.slice(0, ROWS_MAX).to_pylist():
        shown.add_row(*(str(value) for value in row.values()))
    Console(highlight=False).print(shown)
    if result.num_rows > ROWS_MAX:
        typer.echo(f"first {ROWS_MAX} of {result.num_rows} rows")
