"""Server-sent events as clients of any kind have received them."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Received:
    """A server-sent event."""

    name: str
    id: str
    data: dict[str, Any]

    @property
    def place(self) -> tuple[str, int] | None:
        """Shard and seq of an event of a log; None for a watermark."""
        return (self.data["shard"], self.data["seq"]) if "seq" in self.data else None


def received(lines: Iterable[str]) -> Iterator[Received]:
    """Parse a stream; what a cut has left of an event at the end is dropped, as browsers do."""
    fields: dict[str, str] = {}
    for line in lines:
        text = line.rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            assert name in {"retry", "id", "event", "data"}, text
            assert name not in fields
            fields[name] = value
            continue
        if "data" in fields and line.endswith("\n"):
            yield Received(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
        fields = {}
