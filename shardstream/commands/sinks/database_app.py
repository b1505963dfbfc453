"""The command line of `shardstream database`."""

from enum import StrEnum
from typing import Annotated

import typer

from shardstream.commands.options import (
    AcceptSkip,
    AvailableNow,
    Config,
    Every,
    Json,
    KeyRangeOption,
    Keyspace,
    MaxHoldOption,
    MaxRowsPerBatch,
    ReaderName,
    RequiredCheckpoint,
    StartOption,
    Tables,
    TypeChange,
    TypeChangeOption,
)
from shardstream.commands.sinks.run_by_default import RunByDefault

# As `run_database`: tasks that decode and stage side by side.
PARTITIONS_DEFAULT = 4


class Deletes(StrEnum):
    """What becomes of rows that the source deletes."""

    HARD = "hard"
    SOFT = "soft"


class NulText(StrEnum):
    """What becomes of zero characters, which PostgreSQL cannot store."""

    HALT = "halt"
    REPLACE = "replace"


Url = Annotated[
    str,
    typer.Option(
        "--to", help="The database: postgresql://USER@HOST:PORT/DATABASE, or mysql://, mariadb://"
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        help="Schema of all tables (default: named as the source's databases; "
        "MySQL, MariaDB: the database of --to)",
    ),
]
DeletesOption = Annotated[
    Deletes, typer.Option("--deletes", help="Delete rows, or keep them marked in column _deleted")
]
NulTextOption = Annotated[
    NulText,
    typer.Option("--nul-text", help="PostgreSQL: stop at a zero character or write U+FFFD"),
]
Partitions = Annotated[
    int, typer.Option("--partitions", help="Tasks that stage side by side, a power of two")
]

app = typer.Typer(no_args_is_help=True, cls=RunByDefault)


@app.command("run")
def database(
    keyspace: Keyspace,
    url: Url,
    checkpoint: RequiredCheckpoint,
    config: Config = None,
    schema: Schema = None,
    tables: Tables = None,
    deletes: DeletesOption = Deletes.HARD,
    nul_text: NulTextOption = NulText.HALT,
    on_type_change: TypeChangeOption = TypeChange.HALT,
    accept_skip: AcceptSkip = None,
    partitions: Partitions = PARTITIONS_DEFAULT,
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
    """Let the tables of another database follow, every change exactly once, written by Spark."""
    from shardstream.commands.sinks.database import DatabaseOptions, run_database_command
    from shardstream.settings.model import load_settings
    from spark_consumers.applying.evolution import OnTypeChange
    from spark_consumers.second_database.database import TargetOptions

    target = TargetOptions(keyspace, schema, deletes.value, nul_text.value)
    options = DatabaseOptions(
        keyspace=keyspace,
        checkpoint=checkpoint,
        key_range=key_range,
        start=start,
        max_rows_per_batch=max_rows_per_batch,
        max_hold_ms=max_hold_ms,
        name=name,
        available_now=available_now,
        as_json=as_json,
        every_s=every_s,
        url=url,
        target=target,
        tables=tuple(tables or ()),
        partitions=partitions,
        accept_skip=tuple(accept_skip or ()),
        on_type_change=OnTypeChange(on_type_change.value),
    )
    run_database_command(load_settings(config), options)


@app.command()
def verify(
    keyspace: Keyspace,
    url: Url,
    config: Config = None,
    tables: Tables = None,
    nul_text: NulTextOption = NulText.HALT,
    key_range: KeyRangeOption = "-",
    *,
    as_json: Json = False,
) -> None:
    """Compare the tables with the sources row by row; exit with 1 if rows differ."""
    from shardstream.commands.sinks.verify.command import VerifyOptions, run_verify
    from shardstream.settings.model import load_settings

    options = VerifyOptions(
        keyspace=keyspace,
        url=url,
        tables=tuple(tables or ()),
        key_range=key_range,
        replaces_nul=nul_text is NulText.REPLACE,
        as_json=as_json,
    )
    if not run_verify(load_settings(config), options):
        raise typer.Exit(1)
