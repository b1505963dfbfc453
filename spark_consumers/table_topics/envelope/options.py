"""The format of the messages and how values are represented."""

from dataclasses import dataclass
from enum import StrEnum

from event_token.errors import UsageError


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

    `prefix`: the first part of the topics' names, and `source.name`. `schemas`: JSON messages
    contain their schema, as those of Connect's JsonConverter do. `tombstones`: a delete is followed
    by a message without a value, which compaction needs. UsageError on options that exclude each
    other.
    """

    prefix: str
    keyspace: str
    format: Format = Format.DEBEZIUM_JSON
    schemas: bool = False
    decimal: Decimals = Decimals.PRECISE
    time: Times = Times.ADAPTIVE
    unsigned: Unsigned = Unsigned.LONG
    tombstones: bool = True

    def __post_init__(self) -> None:
        """Check the options."""
        if self.schemas and self.format.is_avro:
            raise UsageError(
                f"option schemas: {self.format.value} has its schemas in the registry; leave it out"
            )
