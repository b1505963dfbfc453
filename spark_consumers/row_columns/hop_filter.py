"""Filters out records that a stream had seen before it hopped to their log without marks.

Applies `topics.reading.seen_before.SeenBefore` once per token, and not at all to changes that were
made here after the reshard. Typed for mypyc.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from topics.records.envelope import EnvelopeReader
from topics.records.vevent import TokenText

# What is known of a record.
NEW: Final = 0
SEEN: Final = 1
DOUBTFUL: Final = 2


class HopFilter:
    """Looks at a record's token."""

    def __init__(
        self, new_from_us: i64, is_seen: Callable[[int, TokenText | None], bool | None]
    ) -> None:
        """`is_seen` gets a record's time and origin. From `new_from_us` on, no origin means new."""
        self.new_from_us: i64 = new_from_us
        self.is_seen: Callable[[int, TokenText | None], bool | None] = is_seen
        self._token_number: i64 = 0  # of the token that the verdict is on
        self._verdict: i64 = NEW

    def verdict(self, envelope: EnvelopeReader) -> i64:
        """Return NEW, SEEN or DOUBTFUL; the envelope's token has been taken."""
        if not envelope.has_origin and envelope.timestamp_us >= self.new_from_us:
            return NEW
        if envelope.token_number != self._token_number:
            is_seen = self.is_seen(int(envelope.timestamp_us), envelope.token_text().origin)
            self._token_number = envelope.token_number
            self._verdict = DOUBTFUL if is_seen is None else SEEN if is_seen else NEW
        return self._verdict
