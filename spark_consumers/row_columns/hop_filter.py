"""Which records of a log a stream had seen when it hopped there without marks. Typed for mypyc.

Applies `topics.reading.unmarked_hop.SeenBefore`: once for all records of one token, and not at all
for changes that were made here after the reshard.
"""

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from topics.records.cursor import Cursor

# What is known of a record.
NEW: Final = 0
SEEN: Final = 1
DOUBTFUL: Final = 2

Origin = tuple[int, bytes, bytes]  # timestamp_us, shard, position


class HopFilter:
    """Looks ahead in a record's envelope."""

    def __init__(
        self, new_from_us: i64, is_seen: Callable[[int, Origin | None], bool | None]
    ) -> None:
        """`is_seen` gets a record's time and origin. From `new_from_us` on, none means new."""
        self.new_from_us: i64 = new_from_us
        self.is_seen: Callable[[int, Origin | None], bool | None] = is_seen
        self._fields: bytes = b""  # of the token last judged
        self._verdict: i64 = NEW

    def judged(self, cursor: Cursor) -> i64:
        """Return NEW, SEEN or DOUBTFUL; the cursor stands at the token, and stays there."""
        begin = cursor.at
        timestamp_us = cursor.take_long()
        cursor.skip_bytes()  # shard
        cursor.skip_bytes()  # position
        origin: Origin | None = None
        if cursor.take_present():
            origin_us = cursor.take_long()
            shard = cursor.take_bytes()
            origin = (int(origin_us), shard, cursor.take_bytes())
        elif timestamp_us >= self.new_from_us:
            cursor.at = begin
            return NEW
        fields = cursor.record[begin : cursor.at]
        cursor.at = begin
        if fields != self._fields:
            is_seen = self.is_seen(int(timestamp_us), origin)
            self._fields = fields
            self._verdict = DOUBTFUL if is_seen is None else SEEN if is_seen else NEW
        return self._verdict
