"""The command line of `shardstream state`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from event_token.errors import UsageError
from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import (
    AcceptSkip,
    AvailableNow,
    Checkpoint,
    Config,
    DropColumns,
    Every,
    Json,
    KeyRangeOption,
    KeyScopeOption,
    Keyspace,
    MaxHoldOption,
    MaxRowsPerBatch,
    OnTruncateOption,
    PartialOption,
    ReaderName,
    SameKeyOption,
    StartOption,
    Tables,
    TypeChangeOption,
)
from shardstream.commands.single_options import CommandLine
from shardstream.commands.sinks.reactions import Reactions
from shardstream.commands.sinks.reading import reading
from shardstream.commands.sinks.run_by_default import RunByDefault
from shardstream.commands.status_lines import LineOptions
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.sink_query.same_keys import KeyRules, OnSameKey

if TYPE_CHECKING:  # Spark, which other commands do not need
    from shardstream.commands.sinks.state import Layout

MS_PER_S = 1_000
Target = Annotated[str, typer.Argument(help="Folder or URL of the current state")]
TargetOption = Annotated[
    str, typer.Option("--target", help="Folder or URL (s3://...): one Delta table per table below")
]
Partitions = Annotated[int, typer.Option("--partitions", help="Tasks that write, a power of two")]
Buckets = Annotated[
    str,
    typer.Option(
        "--buckets",
        help="Parts of a new table, a power of two; auto: as many as partitions, and twice as "
        "many each time that the table outgrows them",
    ),
]
Vectors = Annotated[
    str,
    typer.Option(
        "--deletion-vectors", help="on, or off for readers that know none: files are rewritten"
    ),
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


app = CommandLine(no_args_is_help=True, cls=RunByDefault)


@app.command()
@serves_metrics
def run(
    keyspace: Keyspace,
    target: TargetOption,
    config: Config = None,
    checkpoint: Checkpoint = None,
    tables: Tables = None,
    history: Histories = None,
    track: Track = None,
    partitions: Partitions = 2,
    buckets: Buckets = "auto",
    deletion_vectors: Vectors = "on",
    accept_skip: AcceptSkip = None,
    on_type_change: TypeChangeOption = OnTypeChange.HALT,
    on_truncate: OnTruncateOption = OnTruncate.APPLY,
    key_scope: KeyScopeOption = KeyScope.KEYSPACE,
    on_same_key: SameKeyOption = OnSameKey.STOP,
    partial: PartialOption = OnPartial.STOP,
    key_range: KeyRangeOption = "-",
    start: StartOption = "earliest",
    max_rows_per_batch: MaxRowsPerBatch = None,
    max_hold_ms: MaxHoldOption = None,
    name: ReaderName = None,
    every_s: Every = None,
    *,
    drop_columns: DropColumns = False,
    available_now: AvailableNow = False,
    as_json: Json = False,
) -> None:
    """Keep the present rows of all tables in Delta tables, each batch exactly once."""
    from shardstream.commands.sinks.state import StateOptions, histories_of, run_state_command
    from shardstream.settings.model import load_settings

    options = StateOptions(
        keyspace=keyspace,
        target=target,
        checkpoint=checkpoint,
        tables=tuple(tables or ()),
        histories=histories_of(history, track, tables),
        layout=_layout(partitions, buckets, deletion_vectors),
        accept_skip=tuple(accept_skip or ()),
        reactions=Reactions(on_type_change, on_truncate, partial, drop_columns),
        keys=KeyRules(key_scope, on_same_key),
        **reading(start, max_rows_per_batch, max_hold_ms, name, key_range),
        available_now=available_now,
        lines=LineOptions(as_json, every_s),
    )
    run_state_command(load_settings(config), options)


def _layout(partitions: int, buckets: str, deletion_vectors: str) -> "Layout":
    from shardstream.commands.sinks.state import Layout

    if deletion_vectors not in {"on", "off"}:
        raise UsageError(f"--deletion-vectors {deletion_vectors}: on or off")
    return Layout(partitions, _number_of(buckets), deletion_vectors == "on")


def _number_of(buckets: str) -> int | None:
    if buckets == "auto":
        return None
    if not buckets.isdecimal():
        raise UsageError(f"--buckets {buckets}: auto or a power of two")
    return int(buckets)


@app.command("as-of")
def as_of(
    target: Target,
    table: Annotated[str, typer.Argument(help="database.table")],
    time: Annotated[str, typer.Argument(help="A time, such as 2026-01-31T12:00:00Z, or latest")],
    to: Annotated[Path, typer.Option("--to", help="The Parquet file to write")],
    changelog: Annotated[
        str | None,
        typer.Option(
            "--changelog",
            help="Folder or URL of a change log of the keyspace, for the rows as of exactly TIME",
        ),
    ] = None,
    accept_skip: AcceptSkip = None,
) -> None:
    """Write a table as it was at the last end of a batch at or before a time.

    With --changelog, the table is as of exactly that time, to the microsecond.
    """
    from shardstream.commands.sinks.state import run_as_of

    run_as_of(target, table, time, to, changelog, accept_skip or ())


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
    from shardstream.commands.sinks.durations import duration_ms
    from shardstream.commands.sinks.state import run_maintain

    run_maintain(
        target,
        duration_ms(tombstones, "--tombstones") // MS_PER_S,
        duration_ms(keep, "--keep") // MS_PER_S,
    )
