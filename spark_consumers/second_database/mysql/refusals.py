"""What MySQL's and MariaDB's errors tell the caller to do. Pure."""

import re
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError

from event_token.errors import Retry, ShardstreamError, UsageError
from spark_consumers.errors import BadValue, DatabaseRefuses, DuplicateValue

# Cannot connect, lost, shutting down, killed, too many connections, locks, read-only.
_TRANSIENT = frozenset(
    {
        *(0, 1040, 1053, 1077, 1079, 1080, 1158, 1159, 1160, 1161, 1180, 1184, 1203),
        *(1205, 1213, 1226, 1290, 1317, 1836, 1927, 1969, 2002, 2003, 2006, 2013, 2014, 2055),
        *(3024, 3100, 3169, 4031),
    }
)
# No such account or database, no right.
_REFUSED = frozenset({1044, 1045, 1049, 1129, 1130, 1142, 1143, 1227, 1370, 1410, 1698, 1820, 3118})
# A value that a column cannot hold, also CHECK constraints that somebody added.
_BAD_VALUE = frozenset(
    {1264, 1265, 1292, 1366, 1367, 1406, 1411, 1416, 1048, 3140, 3156, 3819, 4025, 4079, 1153}
)
_DUPLICATE = frozenset({1062, 1586})
_TOO_WIDE = 1118
# A DECIMAL of MariaDB may have up to 38 digits after the point, one of MySQL 30.
_SCALE_TOO_LARGE = 1425
# A write, a new file, a tablespace; where only the storage engine's number tells why, it is in the
# message: 28 of the system, 135 of InnoDB.
_FULL = frozenset({20, 1021, 1114, 3675})
_FULL_BY_NUMBER = re.compile(r"\b(?:errno|errcode|error):? (?:28|135)\b", re.IGNORECASE)
# What a message quotes of a row.
_VALUE = re.compile(r"(entry|value:?) '.*' (for|at)", re.DOTALL)


def code_of(error: DBAPIError) -> int:
    """Return the server's number of an error, 0 if it has none."""
    first = next(iter(error.orig.args), 0) if error.orig is not None else 0
    return first if isinstance(first, int) else 0


def said_of(error: DBAPIError) -> str:
    """Return what the server said; it may quote values."""
    return str(error.orig.args[-1] if error.orig is not None and error.orig.args else error.orig)


def is_bad_value(error: DBAPIError) -> bool:
    """Tell whether a column cannot hold a value."""
    return code_of(error) in _BAD_VALUE


def is_too_wide(error: DBAPIError) -> bool:
    """Tell whether the columns of a table take more bytes than a row may have."""
    return code_of(error) == _TOO_WIDE


def without_values(message: str) -> str:
    """Return the first line of a message without what it quotes of a row."""
    return _VALUE.sub(r"\1 \2", message).strip().partition("\n")[0]


def column_of(message: str, names: Sequence[str]) -> str:
    """Return the column that a message names, `unknown` if none."""
    for name in names:
        if any(f"{begin}{name}{end}" in message for begin in "'`." for end in "'`"):
            return name
    return "unknown"


def translated(place: str, error: DBAPIError) -> ShardstreamError:
    """Return the error that tells the caller what to do, without values and passwords."""
    code = code_of(error)
    said = without_values(said_of(error))
    if code in _REFUSED:
        return UsageError(f"{place}: {said} (docs/second-database.md lists the rights)")
    if code == _SCALE_TOO_LARGE:
        return UsageError(
            f"{place}: {said} Follow into MariaDB or PostgreSQL, which hold it, or leave the table "
            f"out by naming the others with --table"
        )
    if code in _FULL or _FULL_BY_NUMBER.search(said):
        return Retry(f"{place}: its disk is full, make room: {said}")
    if error.connection_invalidated or code in _TRANSIENT:
        return Retry(f"{place}: {said}")
    if code in _BAD_VALUE:
        return BadValue(f"{place}: {said}")
    refusal = DuplicateValue if code in _DUPLICATE else DatabaseRefuses
    return refusal(f"{place}: {said} (error {code})")
