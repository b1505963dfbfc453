"""What a progress record tells operators beside its value: Kafka headers, which readers ignore.

A note that this release does not understand is none; no row depends on it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Final, TypeAlias

from topics.progress.record import LastDdl, Progress

Headers: TypeAlias = Sequence[tuple[str, bytes]]
Written: TypeAlias = list[tuple[str, str | bytes | None]]

_DDL: Final = "shardstream.ddl"


def note_headers(progress: Progress) -> Written:
    """Return the headers of a progress record, as Kafka's client takes them."""
    if progress.ddl is None:
        return []
    return [(_DDL, json.dumps(asdict(progress.ddl)).encode())]


def with_notes(progress: Progress, headers: Headers) -> Progress:
    """Return a progress record with what its headers say."""
    for name, value in headers:
        with suppress(ValueError, TypeError, AttributeError):
            if name == _DDL:
                progress = replace(progress, ddl=_ddl(json.loads(value)))
    return progress


def _ddl(fields: dict[str, object]) -> LastDdl:
    """A later release may say more."""
    at_us = fields.get("at_us")
    if not isinstance(at_us, int):
        raise TypeError(at_us)
    return LastDdl(at_us, str(fields.get("kind", "")), str(fields.get("tables", "")))
