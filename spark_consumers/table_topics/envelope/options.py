"""How messages are written and how values are represented."""

from dataclasses import dataclass
from enum import Enum


class Decimals(str, Enum):
    """DECIMAL, as Debezium's `decimal.handling.mode`."""

    PRECISE = "precise"
    STRING = "string"
    DOUBLE = "double"


class Times(str, Enum):
    """DATE, TIME and DATETIME, as Debezium's `time.precision.mode`."""

    ADAPTIVE = "adaptive"  # adaptive_time_microseconds, Debezium's default
    CONNECT = "connect"
    ISOSTRING = "isostring"


class Unsigned(str, Enum):
    """BIGINT UNSIGNED, as Debezium's `bigint.unsigned.handling.mode`."""

    LONG = "long"  # a value beyond 2**63-1 stops the query; Debezium writes a negative number
    PRECISE = "precise"


@dataclass(frozen=True, slots=True)
class EnvelopeOptions:
    """How the messages of a keyspace's tables are written.

    `prefix`: the first part of the topics' names, and `source.name`. `schemas`: JSON messages
    contain their schema, as those of Connect's JsonConverter do. `tombstones`: a delete is followed
    by a message without a value, which compaction needs.
    """

    prefix: str
    keyspace: str
    schemas: bool = False
    decimal: Decimals = Decimals.PRECISE
    time: Times = Times.ADAPTIVE
    unsigned: Unsigned = Unsigned.LONG
    tombstones: bool = True
