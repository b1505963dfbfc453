"""The command line of `shardstream database`."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import (
    AcceptSkip,
    AvailableNow,
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
    RequiredCheckpoint,
    SameKeyOption,
    StartOption,
    Tables,
    TypeChangeOption,
)
from shardstream.commands.single_options import CommandLine
from shardstream.commands.sinks.durations import duration_ms
from shardstream.commands.sinks.reactions import Reactions
from shardstream.commands.sinks.reading import reading
from shardstream.commands.sinks.run_by_default import RunByDefault
from shardstream.commands.status_lines import LineOptions
from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.sink_query.same_keys import KeyRules, OnSameKey

if TYPE_CHECKING:  # drivers of databases, which other commands do not need
    from spark_consumers.second_database.database import TargetOptions

# As `run_database`: tasks that decode and stage side by side.
PARTITIONS_DEFAULT = 4
US_PER_MS = 1_000
MS_PER_S = 1_000


class Deletes(StrEnum):
    """What becomes of rows that the source deletes."""

    HARD = "hard"
    SOFT = "soft"


class NulText(StrEnum):
    """What becomes of zero characters, which PostgreSQL cannot store."""

    HALT = "halt"
    REPLACE = "replace"


class BadRow(StrEnum):
    """What becomes of changes with values that the database cannot hold."""

    STOP = "stop"
    TABLE = "table"


Url = Annotated[
    str,
    typer.Option(
        "--to",
        help="The database: postgresql://USER@HOST:PORT/DATABASE, mysql://, mariadb://, "
        "or another URL of SQLAlchemy",
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
BadRowOption = Annotated[
    BadRow,
    typer.Option(
        "--on-bad-row",
        help="Stop at a value that does not fit, or put its row into _shardstream.rejected",
    ),
]
Partitions = Annotated[
    int, typer.Option("--partitions", help="Tasks that stage side by side, a power of two")
]
TombstonesOption = Annotated[
    str,
    typer.Option(
        "--tombstones", help="How long a deleted key is remembered, for late changes: 12h, 7d"
    ),
]
FollowerOption = Annotated[
    str | None,
    typer.Option(
        "--follower",
        help="Name under which the database keeps position and tables (default: the keyspace)",
    ),
]
RefreshOption = Annotated[
    str, typer.Option("--refresh", help="Time between transactions: 200ms, 1s, 10m")
]

app = CommandLine(no_args_is_help=True, cls=RunByDefault)


@app.command("run")
@serves_metrics
def database(
    keyspace: Keyspace,
    url: Url,
    checkpoint: RequiredCheckpoint,
    config: Config = None,
    schema: Schema = None,
    follower: FollowerOption = None,
    refresh: RefreshOption = "1s",
    tables: Tables = None,
    deletes: DeletesOption = Deletes.HARD,
    tombstones: TombstonesOption = "7d",
    nul_text: NulTextOption = NulText.HALT,
    on_bad_row: BadRowOption = BadRow.STOP,
    on_type_change: TypeChangeOption = OnTypeChange.HALT,
    accept_skip: AcceptSkip = None,
    on_truncate: OnTruncateOption = OnTruncate.APPLY,
    key_scope: KeyScopeOption = KeyScope.KEYSPACE,
    on_same_key: SameKeyOption = OnSameKey.STOP,
    partial: PartialOption = OnPartial.STOP,
    partitions: Partitions = PARTITIONS_DEFAULT,
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
    """Let the tables of another database follow, every change exactly once, written by Spark."""
    from shardstream.commands.sinks.database import DatabaseOptions, run_database_command

    options = DatabaseOptions(
        keyspace=keyspace,
        checkpoint=checkpoint,
        keys=KeyRules(key_scope, on_same_key),
        **reading(start, max_rows_per_batch, max_hold_ms, name, key_range),
        available_now=available_now,
        lines=LineOptions(as_json, every_s),
        url=url,
        target=_target(follower or keyspace, schema, (deletes, nul_text, on_bad_row), tombstones),
        refresh_s=duration_ms(refresh, "--refresh") / MS_PER_S,
        tables=tuple(tables or ()),
        partitions=partitions,
        accept_skip=tuple(accept_skip or ()),
        reactions=Reactions(on_type_change, on_truncate, partial, drop_columns),
    )
    run_database_command(config, options)


def _target(
    follower: str,
    schema: str | None,
    chosen: tuple[Deletes, NulText, BadRow],
    tombstones: str,
) -> "TargetOptions":
    """Return how changes are applied. UsageError if `tombstones` is not a length of time."""
    from spark_consumers.second_database.database import TargetOptions

    deletes, nul_text, on_bad_row = chosen
    return TargetOptions(
        *(follower, schema, deletes.value, nul_text.value),
        tombstones_us=duration_ms(tombstones, "--tombstones") * US_PER_MS,
        on_bad_row=on_bad_row.value,
    )


@app.command()
def verify(
    keyspace: Keyspace,
    url: Url,
    config: Config = None,
    follower: FollowerOption = None,
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
        follower=follower or keyspace,
        tables=tuple(tables or ()),
        key_range=key_range,
        replaces_nul=nul_text is NulText.REPLACE,
        as_json=as_json,
    )
    if not run_verify(load_settings(config), options):
        raise typer.Exit(1)
