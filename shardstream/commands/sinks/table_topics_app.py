"""The command line of `shardstream table-topics`."""

from typing import Annotated

import typer

from shardstream.commands.http.options import serves_metrics
from shardstream.commands.options import (
    AcceptSkip,
    AvailableNow,
    Config,
    Every,
    Json,
    KeyRangeOption,
    KeyScopeOption,
    Keyspace,
    MaxHoldOption,
    MaxRowsPerBatch,
    ReaderName,
    RequiredCheckpoint,
    SameKeyOption,
    StartOption,
    Tables,
)
from shardstream.commands.sinks.durations import duration_ms
from shardstream.commands.status_lines import LineOptions
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.sink_query.same_keys import KeyRules, OnSameKey
from spark_consumers.table_topics.envelope.options import (
    Decimals,
    EnvelopeOptions,
    Format,
    Times,
    Unsigned,
)
from spark_consumers.table_topics.moves import MOVES_MAX_DEFAULT
from spark_consumers.table_topics.options import (
    PARTITIONS_DEFAULT,
    TASKS_DEFAULT,
    OnTruncate,
    TopicOptions,
)

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
_OnTruncate = Annotated[
    OnTruncate,
    typer.Option(
        "--on-truncate",
        help="At TRUNCATE or DROP TABLE on a shard, keep its records, or stop",
    ),
]
_Registry = Annotated[
    str | None,
    typer.Option("--schema-registry", help="URL of the schema registry of the Avro formats"),
]
_Schemas = Annotated[bool, typer.Option("--schemas", help="Put its schema into each JSON message")]
_Tombstones = Annotated[
    bool, typer.Option("--tombstones/--no-tombstones", help="Write one after each delete")
]


@serves_metrics
def table_topics(
    keyspace: Keyspace,
    checkpoint: RequiredCheckpoint,
    config: Config = None,
    prefix: _Prefix = None,
    tables: Tables = None,
    key_scope: KeyScopeOption = KeyScope.KEYSPACE,
    on_same_key: SameKeyOption = OnSameKey.STOP,
    form: _Format = Format.DEBEZIUM_JSON,
    decimal: _Decimals = Decimals.PRECISE,
    time: _Times = Times.ADAPTIVE,
    unsigned: _Unsigned = Unsigned.LONG,
    partitions: _Partitions = PARTITIONS_DEFAULT,
    tasks: _Tasks = TASKS_DEFAULT,
    keep: _Keep = None,
    window: _MoveWindow = "10m",
    moves: _MovesMax = MOVES_MAX_DEFAULT,
    registry: _Registry = None,
    on_truncate: _OnTruncate = OnTruncate.KEEP,
    accept_skip: AcceptSkip = None,
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

    envelope = _envelope(prefix, keyspace, form, (schemas, tombstones), (decimal, time, unsigned))
    options = TableTopicsOptions(
        keyspace=keyspace,
        checkpoint=checkpoint,
        key_range=key_range,
        keys=KeyRules(key_scope, on_same_key),
        start=start,
        max_rows_per_batch=max_rows,
        max_hold_ms=max_hold_ms,
        name=name,
        available_now=available_now,
        lines=LineOptions(as_json, every_s),
        topics=_topics(envelope, (tasks, partitions, moves, keep, window), registry, on_truncate),
        tables=tuple(tables or ()),
        accept_skip=tuple(accept_skip or ()),
    )
    run_table_topics_command(config, options)


def _envelope(
    prefix: str | None,
    keyspace: str,
    form: Format,
    flags: tuple[bool, bool],
    modes: tuple[Decimals, Times, Unsigned],
) -> EnvelopeOptions:
    """`flags`: schemas and tombstones; `modes`: of decimals, times and unsigned numbers."""
    schemas, tombstones = flags
    return EnvelopeOptions(prefix or keyspace, keyspace, form, schemas, *modes, tombstones)


def _topics(
    envelope: EnvelopeOptions,
    sizes: tuple[int, int, int, str | None, str],
    registry: str | None,
    on_truncate: OnTruncate,
) -> TopicOptions:
    """`sizes`: tasks, partitions, recent rows, and the texts of --keep and --move-window."""
    tasks, partitions, moves_max, keep, window = sizes
    keep_ms = None if keep is None else duration_ms(keep, "--keep")
    window_us = 1_000 * duration_ms(window, "--move-window")
    numbers = (tasks, partitions, keep_ms, window_us, moves_max)
    return TopicOptions(envelope, *numbers, registry, on_truncate)
