"""What users decide about a sink: which tables, and what follows changes it cannot just apply.

A policy is made once, from the options of a command or of a Spark format, and passed whole to the
driver and to the tasks. A new decision is a field here, with its help, and the engine's use of it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from event_token.errors import UsageError
from topics.records.skip_record import check_accepted

_UNITS_US = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class Option:
    """Stands in the annotation of a field: its help, and its flag (default: the field's name).

    Where the text of an option is not the value itself, `parse` returns the value of (text, flag)
    or raises UsageError, and `default` is the text of the field's default.
    """

    help: str
    flag: str | None = None
    parse: Callable[[str, str], object] | None = None
    default: str | None = None


def duration_us(text: str, flag: str) -> int:
    """Return a length of time (30s, 10m, 12h, 7d) in microseconds. UsageError names the flag."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"{flag} {text!r}: use a number with ms, s, m, h or d, e.g. 10m or 7d")
    return int(found[1]) * _UNITS_US[found[2]]


def duration_ms(text: str, flag: str) -> int:
    """Return a length of time in milliseconds."""
    return duration_us(text, flag) // 1_000


def duration_s(text: str, flag: str) -> float:
    """Return a length of time in seconds."""
    return duration_us(text, flag) / 1e6


def number_or_auto(text: str, flag: str) -> int | None:
    """Return a number, None for `auto`. UsageError names the flag."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise UsageError(f"{flag} {text}: auto or a power of two")
    return int(text)


# gh-ost: the copy, its change log, and the table that was replaced. pt-online-schema-change: the
# copy and the table that was replaced; it puts more underscores in front of a name that is taken.
# Java reads the pattern as well: Spark leaves out the rows of these tables.
SHADOW_TABLE = "(?s)^_+(.+)_(?:gho|ghc|del|new|old)$"


class OnTypeChange(StrEnum):
    """What follows a type that cannot be widened: an error, or a new column `name__v2`."""

    STOP = "stop"
    NEW_COLUMN = "new-column"


class OnTruncate(StrEnum):
    """What follows a TRUNCATE, DROP or CREATE OR REPLACE of a table on a shard."""

    APPLY = "apply"
    STOP = "stop"


class OnSameKey(StrEnum):
    """What follows a key that keeps live rows on more than one shard."""

    STOP = "stop"
    NEWEST = "newest"


class OnPartial(StrEnum):
    """What follows a partial row image (MINIMAL, NOBLOB) that meets no stored row."""

    STOP = "stop"
    INSERT_NULLS = "insert-nulls"


def is_shadow_table(table: str) -> bool:
    """Tell by its name whether a table belongs to the online schema change of another one."""
    return re.fullmatch(SHADOW_TABLE, table) is not None


TableNames = Annotated[
    tuple[str, ...], Option("Only this table (database.table); several times for more", "--table")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPolicy:
    """What holds for every sink of rows. UsageError on a wrong name of a table or transaction.

    `tables` (`database.table`): empty for all but the shadow tables of online schema changes.
    `accept_skip`: skipped transactions without which the tables are right, and statements that
    changed no value.
    """

    tables: TableNames = ()
    accept_skip: Annotated[
        tuple[str, ...],
        Option(
            "Transactions without which the tables are right: skipped ones, or ALTERs that "
            "changed no value. GTIDs, or reason:TEXT for all skips of one reason; repeatable"
        ),
    ] = ()
    on_same_key: Annotated[
        OnSameKey,
        Option("At a key that keeps live rows on several shards, stop, or show the newest row"),
    ] = OnSameKey.STOP

    def __post_init__(self) -> None:
        """Check the names; lists become tuples, because tasks look policies up by their hash."""
        for field in ("tables", "accept_skip"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        for name in self.tables:
            table_name(name)
        check_accepted(self.accept_skip)

    def follows(self, name: tuple[str, str]) -> bool:
        """Tell whether the sink follows a table, named as (database, table)."""
        return ".".join(name) in self.tables if self.tables else not is_shadow_table(name[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPolicy(SinkPolicy):
    """What holds for sinks that keep the present rows of tables."""

    on_type_change: Annotated[
        OnTypeChange,
        Option("Stop where no type holds both versions of a column, or go on as NAME__v2"),
    ] = OnTypeChange.STOP
    on_truncate: Annotated[
        OnTruncate,
        Option("At TRUNCATE or DROP TABLE on a shard, remove that shard's rows, or stop"),
    ] = OnTruncate.APPLY
    on_partial: Annotated[
        OnPartial,
        Option(
            "At a row image that lacks columns which no stored row has, stop, or store NULL",
            "--partial",
        ),
    ] = OnPartial.STOP
    drop_columns: Annotated[bool, Option("Drop a column once no shard has it any more")] = False


def table_name(text: str, option: str = "--table") -> tuple[str, str]:
    """Return database and table that an option names. UsageError unless it names both."""
    database, dot, table = text.partition(".")
    if not dot or not database or not table or "." in table:
        raise UsageError(f"{option} {text!r}: name a table as database.table")
    return database, table
