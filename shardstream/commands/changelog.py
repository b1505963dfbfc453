"""`shardstream changelog`: a Spark job that writes every change once to a Delta table."""

from functools import partial
from typing import Annotated

import typer

from event_token.errors import Halt
from shardstream.commands.options import Checkpoint, CommandLine, Config, takes_fields
from shardstream.commands.sinks.sink_run import QueryOptions, RunByDefault, lake_places, run_sink
from shardstream.settings.model import load_settings

Target = Annotated[str, typer.Argument(help="Folder or URL of the Delta table")]

app = CommandLine(
    cls=RunByDefault,
    help="Keep every change exactly once in a Delta table.",
    no_args_is_help=True,
)


@app.command()
@takes_fields
def run(
    query: QueryOptions,
    target: Annotated[
        str, typer.Option("--target", help="Folder or URL (s3://...) of the Delta table")
    ],
    config: Config = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Maintain a change log: every change exactly once in a Delta table, written by Spark."""
    from spark_consumers.change_log import run_changelog

    places = lake_places(target, checkpoint)
    target, checkpoint = places
    run_query = partial(
        run_changelog, keyspace=query.keyspace, target=target, checkpoint=checkpoint
    )
    run_sink("changelog", load_settings(config), query, places, run_query)


@app.command()
def vacuum(
    target: Target,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only count the files that would be removed")
    ] = False,
) -> None:
    """Remove files older than a week that no table version uses; a query may run meanwhile.

    A task that failed or ran twice leaves such files. They are not part of the table.
    """
    from sinks.lake.change_log.reading import open_changelog

    files = open_changelog(target, {}).vacuum(full=True, dry_run=dry_run)
    typer.echo(f"{target}: {len(files)} files {'would be removed' if dry_run else 'removed'}")


@app.command()
def check(target: Target) -> None:
    """Count changes that are lost, repeated or out of order; exit with 1 if there are any."""
    from sinks.lake.change_log.reading import check_changelog

    found = check_changelog(target)
    typer.echo(f"{target}: {found.changes:,} changes")
    if found.lost or found.repeated or found.out_of_order:
        raise Halt(
            f"{target}: {found.lost} changes are lost, {found.repeated} repeated and "
            f"{found.out_of_order} out of order. Do not use the log: write a new one, from a copy "
            f"or from where the stream on Kafka begins"
        )
