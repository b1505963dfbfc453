"""`shardstream version`."""

from importlib.metadata import version as installed_version

import typer

from event_token.compiled import IS_COMPILED
from shardstream.commands.options import CommandLine

app = CommandLine()


@app.command()
def version() -> None:
    """Print the version, and whether the hot path is compiled."""
    build = "compiled" if IS_COMPILED else "plain Python: many times slower than compiled"
    typer.echo(f"shardstream {installed_version('shardstream')} ({build})")
