"""How table topics are written: options that the driver checks and the tasks follow."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from event_token.errors import UsageError
from sinks.rule.policy import Option, SinkPolicy, duration_ms, duration_us, table_name
from topics.kafka.topic_settings import POSITIONS_PARTITIONS
from topics.names import check_keyspace, check_prefix, table_topic


class Format(StrEnum):
    """The messages: Debezium's envelope, or the row alone with a few fields more."""

    DEBEZIUM_JSON = "debezium-json"
    DEBEZIUM_AVRO = "debezium-avro"
    FLAT_JSON = "flat-json"
    FLAT_AVRO = "flat-avro"

    @property
    def is_avro(self) -> bool:
        """Whether values are Avro with the id of a registered schema."""
        return self in {Format.DEBEZIUM_AVRO, Format.FLAT_AVRO}

    @property
    def is_flat(self) -> bool:
        """Whether the value is the row itself."""
        return self in {Format.FLAT_JSON, Format.FLAT_AVRO}


class Decimals(StrEnum):
    """DECIMAL, as Debezium's `decimal.handling.mode`."""

    PRECISE = "precise"
    STRING = "string"
    DOUBLE = "double"


class Times(StrEnum):
    """DATE, TIME and DATETIME, as Debezium's `time.precision.mode`."""

    ADAPTIVE = "adaptive"  # adaptive_time_microseconds, Debezium's default
    CONNECT = "connect"
    ISOSTRING = "isostring"


class Unsigned(StrEnum):
    """BIGINT UNSIGNED, as Debezium's `bigint.unsigned.handling.mode`."""

    LONG = "long"  # a value beyond 2**63-1 stops the query; Debezium writes a negative number
    PRECISE = "precise"


@dataclass(frozen=True, slots=True)
class EnvelopeOptions:
    """How the messages of a keyspace's tables are written.

    `prefix`: the first part of the topics' names, and `source.name`; empty: the keyspace.
    `schemas`: JSON messages contain their schema, as those of Connect's JsonConverter do.
    `tombstones`: a delete is followed by a message without a value, which compaction needs.
    UsageError on options that exclude each other.
    """

    keyspace: str
    prefix: Annotated[str, Option("First part of the topics' names (default: the keyspace)")] = ""
    format: Annotated[Format, Option("The messages")] = Format.DEBEZIUM_JSON
    schemas: Annotated[bool, Option("Put its schema into each JSON message")] = False
    decimal: Annotated[Decimals, Option("DECIMAL, as Debezium's decimal.handling.mode")] = (
        Decimals.PRECISE
    )
    time: Annotated[Times, Option("Dates and times, as Debezium's time.precision.mode")] = (
        Times.ADAPTIVE
    )
    unsigned: Annotated[Unsigned, Option("BIGINT UNSIGNED, as Debezium's handling mode for it")] = (
        Unsigned.LONG
    )
    tombstones: Annotated[
        bool, Option("Write one after each delete", "--tombstones/--no-tombstones")
    ] = True

    def __post_init__(self) -> None:
        """Check the options."""
        if not self.prefix:
            object.__setattr__(self, "prefix", self.keyspace)
        if self.schemas and self.format.is_avro:
            raise UsageError(
                f"option schemas: {self.format.value} has its schemas in the registry; leave it out"
            )


# Each takes some 150 bytes in every marker of its task.
_MOVES_MAX = 20_000
# An application that moves a row does so within seconds; clocks differ by less.
_MOVE_WINDOW_US = 10 * 60 * 1_000_000

# Spark's own cost per task is some milliseconds; each has a transaction per batch.
TASKS_DEFAULT = 4
TASKS_MAX = POSITIONS_PARTITIONS
PARTITIONS_DEFAULT = 12
# More than a broker is sensibly given for one topic.
PARTITIONS_MAX = 1_000


class OnTruncateTopic(StrEnum):
    """What follows a TRUNCATE, DROP or CREATE OR REPLACE of a table on a shard."""

    KEEP = "keep"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class TopicOptions(SinkPolicy):
    """The policy of table topics. UsageError on a number out of bounds or a bad name.

    `tasks` write at the same time, a power of two; `partitions` is that of each topic. Neither can
    change later. `keep_ms` deletes records of that age; None keeps each key's last one. For the
    moves see `moves`. `registry_url`: the schema registry of the Avro formats. A key that has rows
    on several shards stops the query after the move window.
    """

    envelope: EnvelopeOptions
    tasks: Annotated[int, Option("Tasks that write, a power of two; cannot change later")] = (
        TASKS_DEFAULT
    )
    partitions: Annotated[int, Option("Partitions of each topic; cannot change later")] = (
        PARTITIONS_DEFAULT
    )
    keep_ms: Annotated[
        int | None,
        Option(
            "Delete records of this age, e.g. 7d (default: compact only)",
            "--keep",
            parse=duration_ms,
        ),
    ] = None
    move_window_us: Annotated[
        int,
        Option(
            "Longest time in which a row moves between shards",
            "--move-window",
            parse=duration_us,
            default="10m",
        ),
    ] = _MOVE_WINDOW_US
    moves_max: Annotated[int, Option("Recently inserted rows that each task remembers")] = (
        _MOVES_MAX
    )
    registry_url: Annotated[
        str | None, Option("URL of the schema registry of the Avro formats", "--schema-registry")
    ] = None
    on_truncate: Annotated[
        OnTruncateTopic,
        Option("At TRUNCATE or DROP TABLE on a shard, keep its records, or stop"),
    ] = OnTruncateTopic.KEEP

    def __post_init__(self) -> None:
        """Check the names and numbers."""
        SinkPolicy.__post_init__(self)
        for name in self.tables:
            table_topic(self.envelope.prefix, *table_name(name))
        check_keyspace(self.envelope.keyspace)
        check_prefix(self.envelope.prefix)
        if not 1 <= self.tasks <= TASKS_MAX or self.tasks & (self.tasks - 1):
            raise UsageError(f"--tasks {self.tasks}: must be a power of two, at most {TASKS_MAX}")
        if not 1 <= self.partitions <= PARTITIONS_MAX:
            raise UsageError(f"--partitions {self.partitions}: must be 1 to {PARTITIONS_MAX}")
        if self.keep_ms is not None and self.keep_ms <= 0:
            raise UsageError(f"--keep {self.keep_ms} ms: must be greater than 0")
        if self.move_window_us < 0 or self.moves_max < 0:
            raise UsageError("--move-window and --moves-max: must not be negative")

    def with_registry(self, default_url: str | None) -> "TopicOptions":
        """Return the options with the registry to use. UsageError when a format lacks one."""
        if not self.envelope.format.is_avro:
            return replace(self, registry_url=None)
        found = replace(self, registry_url=self.registry_url or default_url)
        if found.registry_url is None:
            raise UsageError(
                f"--format {self.envelope.format.value} needs a schema registry: name one with "
                f"--schema-registry URL"
            )
        return found
