"""How a command reads the stream, as the options of `QueryOptions`."""

from typing import TypedDict


class Reading(TypedDict):
    """Where to start, how much at once, how long to wait, under which name, and which keys."""

    start: str
    max_rows_per_batch: int | None
    max_hold_ms: int | None
    name: str | None
    key_range: str


def reading(
    start: str,
    max_rows_per_batch: int | None,
    max_hold_ms: int | None,
    name: str | None,
    key_range: str,
) -> Reading:
    """Return them by name."""
    return Reading(
        start=start,
        max_rows_per_batch=max_rows_per_batch,
        max_hold_ms=max_hold_ms,
        name=name,
        key_range=key_range,
    )
