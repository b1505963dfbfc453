"""Timestamps of a shard's log: never running back, never far ahead of the producer's clock."""

from collections.abc import Callable

from mypy_extensions import i64


class StreamClock:
    """Clamps commit times to what was written and promised before (design.md §3)."""

    def __init__(
        self,
        floor_us: i64,
        max_ahead_us: i64,
        now_us: Callable[[], int],
        on_notice: Callable[[str], None],
    ) -> None:
        """`floor_us`: the last record's time or the last head promised, whichever is later."""
        self._now_us: Callable[[], int] = now_us
        self._on_notice: Callable[[str], None] = on_notice
        self._max_ahead_us: i64 = max_ahead_us
        self._limit_us: i64 = i64(now_us()) + max_ahead_us
        self._is_cutting: bool = False
        # The open transaction's time on the log, and the last one's.
        self.timestamp_us: i64 = floor_us
        # What may be promised: a floor that was cut to the clock's bound is none of it.
        self.head_us: i64 = min(floor_us, self._limit_us - max_ahead_us)
        self._next_head_us: i64 = self.head_us

    def take(self, commit_us: i64) -> None:
        """Set the time of a transaction that begins."""
        if commit_us > self._limit_us:
            self._limit_us = i64(self._now_us()) + self._max_ahead_us
        if commit_us > self._limit_us:
            if not self._is_cutting:
                self._is_cutting = True
                self._on_notice(
                    f"a transaction says that it was committed {commit_us - self._limit_us} us "
                    f"later than this clock and {self._max_ahead_us} us allow: its time on the "
                    f"log is cut to that bound (SET timestamp, or one of the clocks is wrong)"
                )
            commit_us = self._limit_us
        else:
            self._is_cutting = False
            self._next_head_us = max(self._next_head_us, commit_us)
        self.timestamp_us = max(self.timestamp_us, commit_us)

    def take_now(self) -> None:
        """Set the time of what is no transaction of the server's: as early as may be."""
        if self.timestamp_us < 0:
            self.timestamp_us = self._now_us()

    def commit(self) -> None:
        """The transaction is complete: its time may be promised."""
        self.head_us = self._next_head_us

    def advance(self, head_us: i64) -> None:
        """Something else promised this head: keep to it from here on."""
        self.timestamp_us = max(self.timestamp_us, head_us)
        if head_us > self.head_us:
            self.head_us = head_us
            self._next_head_us = max(self._next_head_us, head_us)
