"""Which changes a reader had seen before it hopped to a reshard's target without marks. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self, cast

from event_token import EventToken, Order, compare
from topics.records.vevent import TokenText, VEvent


@dataclass(frozen=True, slots=True)
class SeenBefore:
    """What a reader had read when it hopped to a target; `frontier_us` None: nobody knows.

    All changes of the sources before `frontier_us` had been read and none from it on, where
    `is_exact`; else the `tokens` say how far each source had been read.
    """

    hop_time_us: int
    frontier_us: int | None = None
    is_exact: bool = False
    tokens: Mapping[str, EventToken | None] | None = None

    def judged(self, event: VEvent) -> VEvent | None:
        """The event, marked where it may have been seen; None where it was."""
        is_seen = self.is_seen(event.timestamp_us, event.token_text.origin)
        if is_seen is None:
            return replace(event, possible_duplicate=True)
        return None if is_seen else event

    def is_seen(self, timestamp_us: int, origin: TokenText | None) -> bool | None:
        """Whether a change of that time and origin was seen; None where it cannot be told.

        Without an origin a change from `hop_time_us` on is new.
        """
        if origin is None or self.tokens is None or origin.shard not in self.tokens:
            return False if timestamp_us >= self.hop_time_us else None
        if self.is_exact and self.frontier_us is not None:
            return origin.timestamp_us < self.frontier_us
        last = self.tokens[origin.shard]
        order = Order.UNKNOWN if last is None else compare(origin.token, last)
        if order is Order.UNKNOWN:
            return None
        return order is not Order.NEWER

    def to_json_dict(self) -> dict[str, object]:
        """Return plain JSON values, tokens as their opaque strings."""
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
        """Return what plain JSON values say. KeyError, TypeError, ValueError, TokenError."""
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
