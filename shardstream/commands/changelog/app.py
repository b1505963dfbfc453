"""The command line of `shardstream changelog`."""

from typing import Annotated

import typer

from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import (
    AvailableNow,
    Checkpoint,
    Config,
    Every,
    Json,
    KeyRangeOption,
    Keyspace,
    MaxHoldOption,
    MaxRowsPerBatch,
    ReaderName,
    StartOption,
)
from shardstream.commands.single_options import CommandLine
from shardstream.commands.sinks.run_by_default import RunByDefault
from shardstream.commands.status_lines import LineOptions

Target = Annotated[str, typer.Argument(help="Folder or URL of the Delta table")]

app = CommandLine(no_args_is_help=True, cls=RunByDefault)


@app.command()
@serves_metrics
def run(
    keyspace: Keyspace,
    target: Annotated[
        str, typer.Option("--target", help="Folder or URL (s3://...) of the Delta table")
    ],
    config: Config = None,
    checkpoint: Checkpoint = None,
    key_range: KeyRangeOption = "-",
    start: StartOption = "earliest",
    max_rows_per_batch: MaxRowsPerBatch = None,
    max_hold_ms: MaxHoldOption = None,
    name: ReaderName = None,
    every_s: Every = None,
    *,
    available_now: AvailableNow = False,
    as_json: Json = False,
) -> None:
    """Maintain a change log: every change exactly once in a Delta table, written by Spark."""
    from shardstream.commands.changelog.command import ChangelogOptions, run_changelog_command
    from shardstream.settings.model import load_settings

    options = ChangelogOptions(
        keyspace=keyspace,
        target=target,
        checkpoint=checkpoint,
        key_range=key_range,
        start=start,
        max_rows_per_batch=max_rows_per_batch,
        max_hold_ms=max_hold_ms,
        name=name,
        available_now=available_now,
        lines=LineOptions(as_json, every_s),
    )
    run_changelog_command(load_settings(config), options)


@app.command()
def vacuum(
    target: Target,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go")] = False,
) -> None:
    """Remove files older than a week that no version of the table has; a query may run meanwhile.

    A task that failed or ran twice leaves such files. They are not part of the table.
    """
    from shardstream.commands.changelog.command import run_vacuum

    run_vacuum(target, dry_run=dry_run)


@app.command()
def check(target: Target) -> None:
    """Count changes that are lost, repeated or out of order; the exit status is 1 if there are."""
    from shardstream.commands.changelog.command import run_check

    run_check(target)
