"""Parses where a stream, a query or a new log starts: one parser for all entry points. Pure.

| form | example | for |
|---|---|---|
| `earliest`, `latest` | | readers and producers |
| `copy` | | readers |
| a time with a zone | `2026-01-31T12:00:00Z` | readers and producers |
| microseconds since 1970 | `us:1769860800000000`; in Python also an int | readers and producers |
| a position | `StreamPosition.to_string()` | readers |
| a GTID set | `gtid:3E11FA47-...:1-77`, `gtid:0-1-99` | producers |

Nothing is guessed: digits alone may be a date, seconds, milliseconds or microseconds, and a time
without a zone may be of any zone, so both are refused.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from event_token import StreamPosition
from event_token.errors import UsageError

# What applications may pass: see the table above.
Start = str | datetime | int | StreamPosition


class StartWord(StrEnum):
    """A start that the logs resolve."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COPY = "copy"


# A start of a reader; an int is microseconds since the epoch.
ParsedStart = StartWord | int | StreamPosition


@dataclass(frozen=True, slots=True)
class GtidStart:
    """A GTID set as text, of which the server's family decides the syntax."""

    text: str


TIME_EXAMPLE: Final = "2026-01-31T12:00:00Z"
_TIME_FORM: Final = f"a time with a zone ({TIME_EXAMPLE})"
_MICROSECONDS_FORM: Final = "microseconds since 1970 (us:1769860800000000)"
_MICROSECONDS: Final = "us:"
_GTID: Final = "gtid:"

# From 1973 to 2286: no time in this range, in seconds, milliseconds or nanoseconds, is a number of
# microseconds in it, so a wrong unit is noticed.
MICROSECONDS_MIN: Final = 10**14
MICROSECONDS_MAX: Final = 10**16 - 1
# Per unit, what a number of it is multiplied and divided by to give microseconds.
_UNITS: Final = {"seconds": (1_000_000, 1), "milliseconds": (1_000, 1), "nanoseconds": (1, 1_000)}
# int() refuses thousands of digits by a ValueError; a time in nanoseconds has 19.
_DIGITS_MAX: Final = 20

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# `fromisoformat` alone takes any character between date and time.
_DATE_AND_TIME: Final = re.compile(r"\d{4}-?\d\d-?\d\d[T ]\d.*")
_DATE: Final = re.compile(r"\d{4}-\d\d.*")


def parse_start(
    start: object, name: str = "start", words: Collection[StartWord] = tuple(StartWord)
) -> ParsedStart:
    """Return a reader's start; UsageError lists the accepted forms.

    `name`: what the user calls it, for messages. `words`: those that are accepted.
    """
    try:
        return _parsed(start, words)
    except UsageError as error:
        forms = f"{', '.join(words)}, {_TIME_FORM}, {_MICROSECONDS_FORM} or a position"
        raise _refused(name, start, error, forms) from error


def _parsed(start: object, words: Collection[StartWord]) -> ParsedStart:
    if isinstance(start, StreamPosition):
        return start
    if isinstance(start, datetime):
        return _moment_us(start)
    if isinstance(start, int) and not isinstance(start, bool):
        return _checked_us(start)
    if not isinstance(start, str):
        raise UsageError(f"it is of type {type(start).__name__}")
    if start in words:
        return StartWord(start)
    time_us = _time_us(start)
    return StreamPosition.from_string(start) if time_us is None else time_us


def parse_producer_start(text: str, name: str = "start") -> StartWord | int | GtidStart:
    """Return where an empty log starts; UsageError lists the accepted forms."""
    if text.startswith(_GTID):
        return GtidStart(text.removeprefix(_GTID))
    if text in {StartWord.EARLIEST, StartWord.LATEST}:
        return StartWord(text)
    forms = f"earliest, latest, {_TIME_FORM}, {_MICROSECONDS_FORM} or gtid:SET"
    return _time(text, name, forms)


def parse_time(given: str | datetime, name: str) -> int:
    """Return the microseconds since the epoch of a time with a zone; UsageError otherwise."""
    return _time(given, name, f"{_TIME_FORM} or {_MICROSECONDS_FORM}")


def _time(given: str | datetime, name: str, forms: str) -> int:
    try:
        time_us = _time_us(given) if isinstance(given, str) else _moment_us(given)
    except UsageError as error:
        raise _refused(name, given, error, forms) from error
    if time_us is None:
        raise _refused(name, given, "it is not a time", forms)
    return time_us


def _refused(name: str, given: object, why: object, forms: str) -> UsageError:
    return UsageError(f"{name} {given!r}: {why}. Accepted: {forms}")


def _time_us(text: str) -> int | None:
    """Return the microseconds of a text that looks like a time; None for any other text."""
    if text.startswith(_MICROSECONDS):
        digits = text.removeprefix(_MICROSECONDS)
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX):
            raise UsageError(f"us: is followed by a number of at most {_DIGITS_MAX} digits")
        return _checked_us(int(digits))
    if text.isdecimal():
        raise UsageError("digits alone may be a date, seconds, milliseconds or microseconds")
    if _DATE_AND_TIME.fullmatch(text):
        try:
            return _moment_us(datetime.fromisoformat(text))
        except ValueError as error:
            raise UsageError(f"it is not an ISO 8601 time ({error})") from error
    if _DATE.fullmatch(text):
        raise UsageError("a date alone names neither the time of day nor the zone")
    return None


def _moment_us(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise UsageError("it names no time zone")
    time_us = (moment - _EPOCH) // timedelta(microseconds=1)
    if time_us < 0:
        raise UsageError("it lies before 1970")
    return time_us


def _checked_us(number: int) -> int:
    if MICROSECONDS_MIN <= number <= MICROSECONDS_MAX:
        return number
    for unit, (times, by) in _UNITS.items():
        time_us = number * times // by
        if MICROSECONDS_MIN <= time_us <= MICROSECONDS_MAX:
            moment = _EPOCH + timedelta(microseconds=time_us)
            iso = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
            raise UsageError(
                f"it is no number of microseconds from 1973 to 2286; as {unit} it would be {iso}"
            )
    raise UsageError("it is no number of microseconds from 1973 to 2286")
