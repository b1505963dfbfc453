"""Lengths of time as options give them: 30s, 10m, 12h, 7d."""

import re

from event_token.errors import UsageError

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")


def duration_ms(text: str, option: str) -> int:
    """Return a length of time in milliseconds. UsageError names the option."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError(f"{option} {text!r}: use a number with ms, s, m, h or d, e.g. 10m or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]
