"""`shardstream demo`."""

from pathlib import Path
from typing import Annotated

import typer

from event_token import Flavor
from event_token.errors import UsageError
from shardstream.commands.options import CommandLine

app = CommandLine()


@app.command()
def demo(
    seconds: Annotated[int, typer.Option(help="How long the workload runs", min=5)] = 30,
    folder: Annotated[Path, typer.Option(help="Folder for all servers and data")] = Path(
        ".local/demo"
    ),
    *,
    mariadb: Annotated[
        bool, typer.Option("--mariadb", help="Use MariaDB (default: MySQL where it is available)")
    ] = False,
    cache: Annotated[
        bool,
        typer.Option("--cache", help="Run a shop behind a cache instead, with replicas that lag"),
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="With --cache: add ordinary caches, for comparison")
    ] = False,
) -> None:
    """Run the whole system on real servers, split a shard live, and prove that nothing is lost."""
    flavor = Flavor.MARIADB if mariadb else None
    if plain and not cache:
        raise UsageError("--plain requires --cache")
    if cache:
        from shardstream.demo.cached.run import run_cached_demo

        is_proven = run_cached_demo(seconds, folder, flavor, plain=plain)
    else:
        from shardstream.demo.run import run_demo

        is_proven = run_demo(seconds, folder, flavor)
    if not is_proven:
        raise typer.Exit(1)
