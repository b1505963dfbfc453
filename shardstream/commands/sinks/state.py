"""`shardstream state`: keeps the present rows of all tables in Delta tables."""

import os
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from event_token.errors import UsageError
from event_token.position import NUMBER_MAX
from shardstream.commands.options import (
    Checkpoint,
    CommandLine,
    Config,
    takes_fields,
)
from shardstream.commands.sinks.sink_run import (
    KeyedQueryOptions,
    RunByDefault,
    lake_places,
    run_sink,
)
from shardstream.settings.model import load_settings
from sinks.lake.state.options import StateOptions
from sinks.rule.policy import duration_s
from topics.start.start_forms import StartWord, parse_start

Target = Annotated[str, typer.Argument(help="Folder or URL of the current state")]
TargetOption = Annotated[
    str, typer.Option("--target", help="Folder or URL (s3://...): one Delta table per table below")
]
Histories = Annotated[
    list[str] | None,
    typer.Option(
        "--history",
        help="Keep every version of this table's rows too (database.table); several times for more",
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Begin a version only where one of these columns changes: shop.orders=status,price",
    ),
]


app = CommandLine(
    cls=RunByDefault,
    help="Keep the current state of all tables in Delta tables.",
    no_args_is_help=True,
)


@app.command()
@takes_fields
def run(
    query: KeyedQueryOptions,
    policy: StateOptions,
    target: TargetOption,
    config: Config = None,
    checkpoint: Checkpoint = None,
    history: Histories = None,
    track: Track = None,
) -> None:
    """Keep the present rows of all tables in Delta tables, each batch exactly once."""
    from spark_consumers.state import run_state

    policy = replace(policy, history=histories_of(history or (), track or ()))
    places = lake_places(target, checkpoint)
    target, checkpoint = places
    run_query = partial(
        run_state, keyspace=query.keyspace, target=target, checkpoint=checkpoint, policy=policy
    )
    run_sink("state", load_settings(config), query, places, run_query, tables=policy.tables)


def histories_of(names: Collection[str], track: Collection[str]) -> dict[str, list[str]]:
    """Return the tables whose history is kept, and their columns that are tracked, [] for all.

    `names`, `track`: as given with --history and --track. UsageError on a bad --track.
    """
    found: dict[str, list[str]] = {name: [] for name in names}
    for text in track:
        table, _, columns = text.partition("=")
        tracked = [name.strip() for name in columns.split(",")]
        if table not in found or not all(tracked):
            raise UsageError(
                f"--track {text!r}: a table of --history and its columns, such as "
                f"shop.orders=status,price"
            )
        found[table] += tracked
    return found


@app.command("as-of")
def as_of(
    target: Target,
    table: Annotated[str, typer.Argument(help="database.table")],
    time: Annotated[str, typer.Argument(help="A time, such as 2026-01-31T12:00:00Z, or latest")],
    to: Annotated[Path, typer.Option("--to", help="The Parquet file to write")],
) -> None:
    """Write a table as it was at the last end of a batch at or before a time."""
    import pyarrow.parquet as pq

    from sinks.lake.state.frontiers import table_as_of

    moment = parse_start(time, "TIME", (StartWord.LATEST,))
    if moment is StartWord.LATEST:
        moment = NUMBER_MAX
    if not isinstance(moment, int):
        raise UsageError(f"TIME {time!r} is a position: name a time, such as 2026-01-31T12:00:00Z")
    found = table_as_of(target, table, moment)
    try:
        pq.write_table(found.rows, to)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UsageError(
            f"--to {to}: {os.strerror(error.errno or 0)}: name a file in a folder that is there "
            f"and can be written"
        ) from error
    at = datetime.fromtimestamp(found.frontier_us / 1e6, tz=UTC).isoformat(timespec="microseconds")
    typer.echo(f"{to}: {found.rows.num_rows:,} rows of {table}, exact as of {at}")


@app.command()
def maintain(
    target: Target,
    tombstones: Annotated[
        str,
        typer.Option("--tombstones", help="How long a deleted key is remembered, for late rows"),
    ] = "7d",
    keep: Annotated[
        str, typer.Option("--keep", help="How long files of earlier versions stay: 12h, at most 7d")
    ] = "7d",
) -> None:
    """Remove old tombstones, and files that no version needs; a query may run meanwhile."""
    from sinks.lake.state.frontiers import maintain_state
    from sinks.lake.state.layout import FRONTIERS

    tombstones_s = int(duration_s(tombstones, "--tombstones"))
    keep_s = int(duration_s(keep, "--keep"))
    for removed in maintain_state(target, tombstones_s=tombstones_s, keep_s=keep_s):
        rows = f"{removed.tombstones} tombstones"
        if removed.table == FRONTIERS:
            rows = f"{removed.frontiers} frontiers"
        typer.echo(f"{removed.table}: {rows}, {removed.files} files removed")
