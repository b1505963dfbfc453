"""`shardstream reshard`: split and merge shards online."""

import dataclasses
import json
from typing import Annotated

import typer

from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import SHARD_NAMES, Config, Every, Json, Keyspace
from shardstream.commands.single_options import CommandLine

app = CommandLine(no_args_is_help=True)

ReshardId = Annotated[str, typer.Argument(help="Id of the reshard, chosen at its creation")]


@app.callback()
def _root() -> None:
    """Split and merge shards online."""


@app.command(context_settings=SHARD_NAMES)
def create(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    source: Annotated[list[str], typer.Option("--source", help="A serving shard; repeatable")],
    target: Annotated[list[str], typer.Option("--target", help="A new shard; repeatable")],
    config: Config = None,
    *,
    from_log: Annotated[
        bool,
        typer.Option("--from-log", help="Copy nothing: the logs contain all rows"),
    ] = False,
    accept_auto_increment: Annotated[
        bool,
        typer.Option(
            "--accept-auto-increment",
            help="The servers of each shard give AUTO_INCREMENT values that no other shard gives",
        ),
    ] = False,
) -> None:
    """Check everything, create the tables on the targets and start copying the sources."""
    from shardstream.commands.reshard.create import run_create
    from shardstream.settings.model import load_settings

    settings = load_settings(config)
    run_create(
        settings,
        keyspace,
        reshard_id,
        source,
        target,
        from_log=from_log,
        accept_auto_increment=accept_auto_increment,
    )


@app.command(context_settings=SHARD_NAMES)
@serves_metrics
def run(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    target: Annotated[str, typer.Argument(help="Target shard, e.g. 80-c0")],
    config: Config = None,
    accept_ddl: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-ddl", help="GTID of a DDL statement that was repeated on the target"
        ),
    ] = None,
    accept_skip: Annotated[
        list[str] | None,
        typer.Option(
            "--accept-skip",
            help="Skipped transactions despite which the target's rows agree: GTIDs, or "
            "reason:TEXT for all of one reason; repeatable",
        ),
    ] = None,
    every_s: Every = None,
    *,
    as_json: Json = False,
) -> None:
    """Run the applier of one target: apply the changes of its sources."""
    from shardstream.commands.reshard.run import Accepted, run_apply
    from shardstream.settings.model import load_settings

    settings = load_settings(config)
    accepted = Accepted(frozenset(accept_ddl or ()), frozenset(accept_skip or ()))
    run_apply(settings, keyspace, reshard_id, target, accepted, as_json=as_json, every_s=every_s)


@app.command()
def status(
    keyspace: Keyspace,
    config: Config = None,
    *,
    as_json: Json = False,
) -> None:
    """Show the reshards of a keyspace, and the progress of each target."""
    from shardstream.commands.reshard.status import run_status
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
    """Compare sources and targets row by row at one position; exit with 1 if rows differ."""
    from shardstream.commands.reshard.verify import run_verify
    from shardstream.settings.model import load_settings

    if not run_verify(load_settings(config), keyspace, reshard_id, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def switch(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Switch even if verify has not passed")
    ] = False,
    lost_source: Annotated[
        bool,
        typer.Option(
            "--lost-source",
            help="Once it is decided: take sources none of whose servers answers for lost",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop writes, mark the logs, open the targets. Can be run again after any failure."""
    from resharding.switch.executor import run_switch
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_settings import switch_settings

    settings = switch_settings(load_settings(config), keyspace, reshard_id, force=force)
    if as_json:
        report = run_switch(
            settings,
            lambda step: typer.echo(json.dumps({"step": str(step)})),
            lost_source=lost_source,
        )
        typer.echo(json.dumps(dataclasses.asdict(report)))
        return
    report = run_switch(settings, lambda step: typer.echo(str(step)), lost_source=lost_source)
    for source, found in report.lost_sources.items():
        typer.echo(
            f"{source} was taken for lost ({found}): raise AUTO_INCREMENT counters and sequences "
            f"of the targets above its values yourself, and create those of its triggers that the "
            f"targets lack",
            err=True,
        )
    if report.stopped_ms is None:
        typer.echo("switched; an earlier run had stopped the writes")
    else:
        typer.echo(f"switched; writes were stopped for {report.stopped_ms} ms")


@app.command()
def cancel(
    keyspace: Keyspace,
    reshard_id: ReshardId,
    config: Config = None,
    *,
    lost_target: Annotated[
        bool,
        typer.Option(
            "--lost-target",
            help="Also once it is decided that the targets begin, until all logs hold BEGIN",
        ),
    ] = False,
) -> None:
    """Return to the sources; possible until it is decided that the targets begin."""
    from resharding.switch.executor import run_cancel
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_settings import switch_settings

    settings = switch_settings(load_settings(config), keyspace, reshard_id)
    run_cancel(settings, lambda step: typer.echo(str(step)), lost_target=lost_target)
    typer.echo("cancelled; the sources are serving")


@app.command()
def complete(keyspace: Keyspace, reshard_id: ReshardId, config: Config = None) -> None:
    """Remove what a finished reshard left on the servers."""
    from resharding.switch.complete import run_complete
    from shardstream.settings.model import load_settings
    from shardstream.settings.reshard_settings import switch_settings

    for note in run_complete(switch_settings(load_settings(config), keyspace, reshard_id)):
        typer.echo(note, err=True)
    typer.echo("completed")
