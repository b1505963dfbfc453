"""Tells which changes a reader saw before it hopped to a target without marks. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from event_token import EventToken, Order, compare
from topics.records.vevent import TokenText, VEvent


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """How far a reader had read the sources when it hopped to a target.

    `is_exact`: it had read all changes of the sources before `frontier_us`, and none later.
    Otherwise `tokens` are the last ones read of each source. `frontier_us` None: unknown.
    """

    hop_time_us: int
    frontier_us: int | None = None
    is_exact: bool = False
    tokens: Mapping[str, EventToken | None] | None = None

    def filtered(self, event: VEvent) -> VEvent | None:
        """Return the event, marked if it may have been seen; None if it was."""
        is_seen = self.is_seen(event.timestamp_us, event.token_text.origin)
        if is_seen is None:
            return replace(event, possible_duplicate=True)
        return None if is_seen else event

    def is_seen(self, timestamp_us: int, origin: TokenText | None) -> bool | None:
        """Tell whether a change with this time and origin was seen; None if that is unknown.

        Without an origin a change from `hop_time_us` on is new. An origin proves that a change was
        seen, never that it was not: it is the newest of all source changes that were applied in
        one transaction of the target.
        """
        if origin is None:
            return False if timestamp_us >= self.hop_time_us else None
        if self.tokens is None or origin.shard not in self.tokens:
            return None
        if self.is_exact and self.frontier_us is not None:
            return True if origin.timestamp_us < self.frontier_us else None
        last = self.tokens[origin.shard]
        order = Order.UNKNOWN if last is None else compare(origin.token, last)
        return True if order in {Order.OLDER, Order.EQUAL} else None

    def to_json_dict(self) -> dict[str, object]:
        """Return plain JSON values, with tokens as opaque strings."""
        tokens = self.tokens
        return {
            "hop_time_us": self.hop_time_us,
            "frontier_us": self.frontier_us,
            "is_exact": self.is_exact,
            "tokens": None
            if tokens is None
            else {s: None if t is None else t.to_string() for s, t in tokens.items()},
        }

    @classmethod
    def from_json_dict(cls, document: Mapping[str, object]) -> Self:
        """Parse plain JSON values; KeyError, TypeError, ValueError or TokenError if invalid."""
        if document.keys() != {"hop_time_us", "frontier_us", "is_exact", "tokens"}:
            raise ValueError(f"it says {', '.join(sorted(document))} of a hop")
        frontier_us = cast("int | None", document["frontier_us"])
        tokens = cast("Mapping[str, str | None] | None", document["tokens"])
        return cls(
            int(cast("int", document["hop_time_us"])),
            None if frontier_us is None else int(frontier_us),
            document["is_exact"] is True,
            tokens
            if tokens is None
            else {s: t if t is None else EventToken.from_string(t) for s, t in tokens.items()},
        )
