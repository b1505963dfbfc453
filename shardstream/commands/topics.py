"""`shardstream topics`: the topics of a shard."""

from typing import Annotated

import typer

from shardstream.commands.options import SHARD_NAMES, Config, Keyspace
from shardstream.commands.single_options import CommandLine

app = CommandLine(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Empty the topics of a shard, so that a new log begins."""


@app.command(context_settings=SHARD_NAMES)
def reset(
    keyspace: Keyspace,
    shard: Annotated[str, typer.Argument(help="Shard, e.g. -80")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is printed with the result")],
    config: Config = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking")] = False,
) -> None:
    """Delete the log, progress and copies of a shard; `produce --from` then starts a new log."""
    from shardstream.commands.fleet.reset import plan_reset, run_reset
    from shardstream.settings.model import load_settings

    planned = plan_reset(load_settings(config), keyspace, shard)
    typer.echo(planned.loses)
    if not yes:
        typer.confirm("Delete them?", abort=True)
    typer.echo(run_reset(planned, reason))
