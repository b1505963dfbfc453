"""What a progress record tells operators beside its value: Kafka headers, which readers ignore.

A note that this release does not understand is none; no row depends on it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final, TypeAlias

from topics.progress.record import LastDdl, Progress, StopReason

Headers: TypeAlias = Sequence[tuple[str, bytes]]
Written: TypeAlias = list[tuple[str, str | bytes | None]]

_DDL: Final = "shardstream.ddl"
_STOPPED: Final = "shardstream.stopped"


def note_headers(progress: Progress) -> Written:
    """Return the headers of a progress record, as Kafka's client takes them."""
    written: Written = []
    if progress.ddl is not None:
        written.append((_DDL, json.dumps(asdict(progress.ddl)).encode()))
    if progress.stopped is not None:
        written.append((_STOPPED, json.dumps(asdict(progress.stopped)).encode()))
    return written


def with_notes(progress: Progress, headers: Headers) -> Progress:
    """Return a progress record with what its headers say."""
    for name, value in headers:
        with suppress(ValueError, TypeError, AttributeError):
            if name == _DDL:
                progress = replace(progress, ddl=_ddl(json.loads(value)))
            elif name == _STOPPED:
                progress = replace(progress, stopped=_stopped(json.loads(value)))
    return progress


# A later release may say more.


def _ddl(fields: dict[str, object]) -> LastDdl:
    return LastDdl(_time(fields), str(fields.get("kind", "")), str(fields.get("tables", "")))


def _stopped(fields: dict[str, object]) -> StopReason:
    restarts = fields.get("restarts")
    return StopReason(
        _time(fields),
        str(fields.get("error", "")),
        str(fields.get("text", "")),
        restarts if isinstance(restarts, int) else 0,
    )


def _time(fields: dict[str, object]) -> int:
    at_us = fields.get("at_us")
    if not isinstance(at_us, int):
        raise TypeError(at_us)
    return at_us
