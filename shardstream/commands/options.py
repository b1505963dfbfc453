"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from spark_consumers.applying.on_truncate import OnTruncate
from spark_consumers.applying.on_type_change import OnTypeChange
from spark_consumers.decoding.key_scope import KeyScope
from spark_consumers.decoding.on_partial import OnPartial
from spark_consumers.sink_query.same_keys import OnSameKey
from topics.fleet.limits import SILENT_MS

# Where a shard is called silent, readers are called held back.
MAX_BEHIND_S = SILENT_MS / 1_000
MaxBehind = Annotated[
    float,
    typer.Option(
        "--max-behind-s",
        help="Readers count as held back once they are more than this many seconds behind",
        min=0,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="Settings file (default: $SHARDSTREAM_CONFIG, else ./shardstream.toml, else the one "
        "of `shardstream local up`)",
    ),
]
Keyspace = Annotated[str, typer.Argument(help="Keyspace, e.g. commerce")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line")]
Every = Annotated[
    float | None,
    typer.Option(
        "--every",
        help="Seconds between status lines (default: 10, and 60 while nothing changes)",
        min=0,
    ),
]
KeyRangeOption = Annotated[
    str, typer.Option("--key-range", help="Part of the keyspace, e.g. -80 (default: all of it)")
]
MaxHoldOption = Annotated[
    int | None,
    typer.Option(
        "--max-hold-ms",
        help="Continue without a shard that has been silent for this long; its rows arrive late",
        min=0,
    ),
]
ReaderName = Annotated[
    str | None,
    typer.Option(
        "--name", help="Report the position on Kafka under this name; `status` shows its lag"
    ),
]
# The options of the commands that run a Spark query.
Checkpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", help="Folder or URL of Spark's checkpoint (default: TARGET.checkpoint)"
    ),
]
StartOption = Annotated[
    str,
    typer.Option(
        "--from",
        help="Where a new checkpoint starts: earliest, latest, copy, a time or a position",
    ),
]
MaxRowsPerBatch = Annotated[
    int | None,
    typer.Option("--max-rows-per-batch", help="Limit the rows (and memory) of a batch", min=1),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process what is available now, then end")
]

# A shard name may begin with a dash (-80); without this it would be taken for an option.
SHARD_NAMES = {"ignore_unknown_options": True}
AcceptSkip = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-skip",
        help="Transactions without which the tables are right: skipped ones, or ALTERs that "
        "changed no value. GTIDs, or reason:TEXT for all skips of one reason; repeatable",
    ),
]
OnTruncateOption = Annotated[
    OnTruncate,
    typer.Option(
        "--on-truncate",
        help="At TRUNCATE or DROP TABLE on a shard, remove that shard's rows, or stop",
    ),
]
KeyScopeOption = Annotated[
    KeyScope,
    typer.Option(
        "--key-scope",
        help="Where primary keys are unique: in the keyspace, or only on each shard, so that the "
        "keyspace id joins them; cannot change later",
    ),
]
PartialOption = Annotated[
    OnPartial,
    typer.Option(
        "--partial",
        help="At a row image that lacks columns which no stored row has, stop, or store NULL",
    ),
]
SameKeyOption = Annotated[
    OnSameKey,
    typer.Option(
        "--on-same-key",
        help="At a key that keeps live rows on several shards, stop, or show the newest row",
    ),
]
DropColumns = Annotated[
    bool,
    typer.Option("--drop-columns", help="Drop a column once no shard has it any more"),
]
RequiredCheckpoint = Annotated[
    str, typer.Option("--checkpoint", help="Folder or URL of Spark's checkpoint")
]
Tables = Annotated[
    list[str] | None,
    typer.Option("--table", help="Only this table (database.table); several times for more"),
]


TypeChangeOption = Annotated[
    OnTypeChange,
    typer.Option(
        "--on-type-change",
        help="Stop where no type holds both versions of a column, or go on as NAME__v2",
    ),
]
