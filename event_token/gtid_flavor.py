"""The parts shared by both families of GTID sets: the flavor, the error and the base class."""

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from event_token.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

# No server prints a set of this size; a longer text is a bug of the caller.
GTID_SET_CHARS_MAX = 64 * 1024 * 1024

# 2**64 has 20 digits; the bound keeps unlimited input away from int().
_NUMBER = re.compile(r"[0-9]{1,20}")


class GtidError(UsageError):
    """Raised on text that is not a GTID set, on mixed flavors and on impossible additions."""


class Flavor(StrEnum):
    """The server family whose GTIDs a set holds."""

    MYSQL = "mysql"
    MARIADB = "mariadb"


class GtidSetBase:
    """The base of both families; operations take any set and refuse the other flavor."""

    __slots__ = ()

    @property
    def flavor(self) -> Flavor:
        """The family of the set."""
        raise NotImplementedError


def flavor_mismatch(mine: GtidSetBase, other: GtidSetBase) -> GtidError:
    """Return the error for an operation that mixes two families."""
    return GtidError(
        f"a {mine.flavor.value} GTID set cannot be combined with a {other.flavor.value} one: "
        f"'{excerpt(str(mine))}' and '{excerpt(str(other))}'",
    )


def excerpt(text: str) -> str:
    """Return text short enough for an error message."""
    shown_max = 120
    return text if len(text) <= shown_max else f"{text[:shown_max]}..."


def parse_number(text: str, low: int, high: int, what: str) -> int:
    """Return the decimal number in text; GtidError unless it lies in [low, high]."""
    if _NUMBER.fullmatch(text) is None:
        raise GtidError(f"{what} '{excerpt(text)}' is not a decimal number")
    number = int(text)
    if not low <= number <= high:
        raise GtidError(f"{what} {number} is outside {low}..{high}")
    return number


def split_parts(text: str) -> "Iterator[str]":
    """Yield the parts between commas, stripped of white space; nothing for an empty set.

    Servers print a line break after each comma. GtidError on an empty part.
    """
    if len(text) > GTID_SET_CHARS_MAX:
        raise GtidError(f"a GTID set of {len(text)} characters is over {GTID_SET_CHARS_MAX}")
    if not text.strip():
        return
    for part in text.split(","):
        stripped = part.strip()
        if not stripped:
            raise GtidError(f"GTID set '{excerpt(text)}' has an empty part between commas")
        yield stripped
