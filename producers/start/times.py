"""ISO 8601 times of settings and messages. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

from event_token.errors import UsageError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_time(text: str) -> int:
    """Microseconds since the epoch of an ISO 8601 time, UTC where it names no zone; UsageError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"start {text!r} is not a time: write it like 2026-01-31T12:00:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time_us = (moment - _EPOCH) // timedelta(microseconds=1)
    if time_us < 0:
        raise UsageError(f"start {text!r} lies before 1970")
    return time_us


def iso(time_us: int) -> str:
    """A time as ISO 8601 text, to the microsecond; `parse_time` reads it."""
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")
