"""The command line of `shardstream table-topics`."""

from typing import Annotated

import typer

from shardstream.commands.options import (
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
)
from shardstream.commands.sinks.durations import duration_ms
from spark_consumers.table_topics.envelope.options import (
    Decimals,
    EnvelopeOptions,
    Format,
    Times,
    Unsigned,
)
from spark_consumers.table_topics.moves import MOVES_MAX_DEFAULT
from spark_consumers.table_topics.options import PARTITIONS_DEFAULT, TASKS_DEFAULT, TopicOptions

_Prefix = Annotated[
    str | None,
    typer.Option("--prefix", help="First part of the topics' names (default: the keyspace)"),
]
_Format = Annotated[Format, typer.Option("--format", help="The messages")]
_Decimals = Annotated[
    Decimals, typer.Option("--decimal", help="DECIMAL, as Debezium's decimal.handling.mode")
]
_Times = Annotated[
    Times, typer.Option("--time", help="Dates and times, as Debezium's time.precision.mode")
]
_Unsigned = Annotated[
    Unsigned,
    typer.Option("--unsigned", help="BIGINT UNSIGNED, as Debezium's handling mode for it"),
]
_Partitions = Annotated[
    int, typer.Option("--partitions", help="Partitions of each topic; cannot change later")
]
_Tasks = Annotated[
    int, typer.Option("--tasks", help="Tasks that write, a power of two; cannot change later")
]
_Keep = Annotated[
    str | None,
    typer.Option("--keep", help="Delete records of this age, e.g. 7d (default: compact only)"),
]
_MoveWindow = Annotated[
    str, typer.Option("--move-window", help="Longest time in which a row moves between shards")
]
_MovesMax = Annotated[
    int, typer.Option("--moves-max", help="Recently inserted rows that each task remembers")
]
_Registry = Annotated[
    str | None,
    typer.Option("--schema-registry", help="URL of the schema registry of the Avro formats"),
]
_Schemas = Annotated[bool, typer.Option("--schemas", help="Put its schema into each JSON message")]
_Tombstones = Annotated[
    bool, typer.Option("--tombstones/--no-tombstones", help="Write one after each delete")
]


def table_topics(
    keyspace: Keyspace,
    checkpoint: RequiredCheckpoint,
    config: Config = None,
    prefix: _Prefix = None,
    tables: Tables = None,
    form: _Format = Format.DEBEZIUM_JSON,
    decimal: _Decimals = Decimals.PRECISE,
    time: _Times = Times.ADAPTIVE,
    unsigned: _Unsigned = Unsigned.LONG,
    partitions: _Partitions = PARTITIONS_DEFAULT,
    tasks: _Tasks = TASKS_DEFAULT,
    keep: _Keep = None,
    move_window: _MoveWindow = "10m",
    moves_max: _MovesMax = MOVES_MAX_DEFAULT,
    registry: _Registry = None,
    key_range: KeyRangeOption = "-",
    start: StartOption = "earliest",
    max_rows: MaxRowsPerBatch = None,
    max_hold_ms: MaxHoldOption = None,
    name: ReaderName = None,
    every_s: Every = None,
    *,
    schemas: _Schemas = False,
    tombstones: _Tombstones = True,
    available_now: AvailableNow = False,
    as_json: Json = False,
) -> None:
    """Write one topic per table, in Debezium's format, each change exactly once."""
    from shardstream.commands.sinks.table_topics import TableTopicsOptions, run_table_topics_command

    modes = (decimal, time, unsigned)
    envelope = EnvelopeOptions(prefix or keyspace, keyspace, form, schemas, *modes, tombstones)
    ages = _ages(keep, move_window)
    topics = TopicOptions(envelope, tasks, partitions, *ages, moves_max, registry)
    options = TableTopicsOptions(
        keyspace=keyspace,
        checkpoint=checkpoint,
        key_range=key_range,
        start=start,
        max_rows_per_batch=max_rows,
        max_hold_ms=max_hold_ms,
        name=name,
        available_now=available_now,
        as_json=as_json,
        every_s=every_s,
        topics=topics,
        tables=tuple(tables or ()),
    )
    run_table_topics_command(config, options)


def _ages(keep: str | None, move_window: str) -> tuple[int | None, int]:
    """Return --keep in milliseconds and --move-window in microseconds."""
    keep_ms = None if keep is None else duration_ms(keep, "--keep")
    return keep_ms, 1_000 * duration_ms(move_window, "--move-window")
