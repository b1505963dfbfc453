"""Checks the arguments of a subscriber, so that a wrong type is one message and not a traceback.

Type checkers find most of these; notebooks and JSON settings have none. Pure.
"""

import re
from collections.abc import Iterable
from typing import Final

from event_token import ClockUncertainty, KeyRange
from event_token.errors import UsageError
from topics.kafka.client import ClientConfig
from topics.reading.planner import MaxHold, Mode, Strict
from topics.reading.unmerged import Unmerged

Table = tuple[str, str]
ReadingMode = Mode | Unmerged

# Of Arrow batches. One ends with a transaction from half of these on, and at the latest at one.
BATCH_ROWS_MAX: Final = 100_000
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
# After this long without an event a batch ends with what it has.
BATCH_WAIT_MS: Final = 500


def checked_config(config: object) -> ClientConfig:
    """Return the configuration unchanged; UsageError for anything but a ClientConfig."""
    if isinstance(config, ClientConfig):
        return config
    raise _wrong("config", config, 'a ClientConfig({"bootstrap.servers": ...})')


def checked_key_range(key_range: object) -> KeyRange:
    """Return the key range of a text such as `-80`."""
    if isinstance(key_range, str):
        return KeyRange.parse(key_range)
    raise _wrong("key_range", key_range, "a text such as '-80', or '-' for all")


def checked_mode(mode: object) -> ReadingMode:
    """Return the mode unchanged; UsageError for anything but the three modes."""
    if isinstance(mode, Strict | MaxHold | Unmerged):
        return mode
    raise _wrong("mode", mode, "Strict(), MaxHold(max_hold_ms) or Unmerged()")


def checked_clock(clock: object) -> ClockUncertainty:
    """Return the uncertainty unchanged; UsageError for anything but a ClockUncertainty."""
    if isinstance(clock, ClockUncertainty):
        return clock
    raise _wrong("clock", clock, "a ClockUncertainty(uncertainty_us=...)")


def checked_timeout_s(timeout_s: object) -> float | None:
    """Return seconds; None never ends."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s >= 0:
        return timeout_s
    raise _wrong("idle_timeout_s", timeout_s, "a number of seconds, or None for no end")


# As statements quote names, for a database whose name has a dot.
_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")


def checked_tables(tables: object) -> frozenset[Table] | None:
    """Return (database, table) pairs of `database.table` names; None for all tables."""
    if tables is None:
        return None
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise _wrong("tables", tables, "a list of database.table names, or None for all")
    return frozenset(map(_table, tables))


def _table(name: object) -> Table:
    if isinstance(name, str):
        quoted = _QUOTED.fullmatch(name)
        if quoted is not None:
            return quoted[1].replace("``", "`"), quoted[2].replace("``", "`")
        database, dot, table = name.partition(".")
        if database and dot and table:
            return database, table
    raise UsageError(f"table {name!r}: write it as database.table")


def _wrong(name: str, given: object, wanted: str) -> UsageError:
    return UsageError(f"{name} {given!r} is of type {type(given).__name__}: pass {wanted}")
