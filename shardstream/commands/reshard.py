"""The commands of `shardstream reshard`."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False)

Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
ReshardId = Annotated[str, typer.Argument(help="The reshard, by the id given at its creation")]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file; default $SHARDSTREAM_CONFIG, ./shardstream.toml"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines")]

# A shard's name may begin with a dash (-80): a single dash and digits is no option of ours.
_SHARD_NAMES = {"ignore_unknown_options": True}


@app.callback()
def _root() -> None:
    """Split and merge shards while everything runs."""


@app.command(context_settings=_SHARD_NAMES)
def create(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    source: Annotated[list[str], typer.Option("--source", help="A serving shard; may be repeated")],
    target: Annotated[list[str], typer.Option("--target", help="A new shard; may be repeated")],
    config: Config = None,
    *,
    from_log: Annotated[
        bool,
        typer.Option("--from-log", help="The logs hold all rows from the first on: copy nothing"),
    ] = False,
) -> None:
    """Check everything, make the tables on the targets and let them follow their sources."""
    from shardstream.commands.reshard_steps import run_create
    from shardstream.settings.model import load_settings

    settings = load_settings(config)
    run_create(settings, keyspace, reshard_id, source, target, from_log=from_log)


@app.command(context_settings=_SHARD_NAMES)
def run(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    target: Annotated[str, typer.Argument(help="Target shard, e.g. 80-c0")],
    config: Config = None,
    accept_ddl: Annotated[
        list[str] | None,
        typer.Option("--accept-ddl", help="GTID of a statement that the target agrees with by now"),
    ] = None,
    *,
    as_json: Json = False,
) -> None:
    """Run the applier of one target: the changes of the sources that belong to it."""
    from shardstream.commands.reshard_steps import run_apply
    from shardstream.settings.model import load_settings

    settings = load_settings(config)
    run_apply(settings, keyspace, reshard_id, target, accept_ddl or (), as_json=as_json)


@app.command()
def status(
    keyspace: Keyspace,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the reshards of a keyspace, and how far each target of those under way is."""
    from shardstream.commands.reshard_steps import run_status
    from shardstream.settings.model import load_settings

    run_status(load_settings(config), keyspace, as_json=as_json)


@app.command()
def verify(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Compare sources and targets row by row at one position; exit with 1 when rows differ."""
    from shardstream.commands.reshard_verify import run_verify
    from shardstream.settings.model import load_settings

    if not run_verify(load_settings(config), keyspace, reshard_id, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def switch(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also without a clean verify")] = False,
    as_json: Json = False,
) -> None:
    """Let the targets serve: stop writes, mark the logs, open the targets. Run it again at will."""
    from resharding.switch.executor import run_switch
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_servers import switch_settings

    settings = switch_settings(load_settings(config), keyspace, reshard_id, force=force)
    if as_json:
        report = run_switch(settings, lambda step: typer.echo(json.dumps({"step": str(step)})))
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    report = run_switch(settings, lambda step: typer.echo(str(step)))
    if report.stopped_ms is None:
        typer.echo("switched; writes were opened by an earlier run")
    else:
        typer.echo(f"switched; writes were stopped for {report.stopped_ms} ms")


@app.command()
def cancel(keyspace: Keyspace, reshard_id: ReshardId, config: Config = None) -> None:
    """Go back to the sources; possible until a target has begun. Run it again at will."""
    from resharding.switch.executor import run_cancel
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_servers import switch_settings

    settings = switch_settings(load_settings(config), keyspace, reshard_id)
    run_cancel(settings, lambda step: typer.echo(str(step)))
    typer.echo("cancelled; the sources serve")


@app.command()
def complete(keyspace: Keyspace, reshard_id: ReshardId, config: Config = None) -> None:
    """Remove what a switched reshard has left on the servers."""
    from resharding.switch.complete import run_complete
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_servers import switch_settings

    for note in run_complete(switch_settings(load_settings(config), keyspace, reshard_id)):
        typer.echo(note, err=True)
    typer.echo("completed")
