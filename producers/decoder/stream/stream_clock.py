"""Timestamps of a shard's log: they never go back, and never far ahead of the producer's clock."""

from collections.abc import Callable

from mypy_extensions import i64


class StreamClock:
    """Turns commit times into record times, and keeps the head (watermark) to promise."""

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
        self._is_clamping: bool = False
        # The time in the log of the open transaction, or of the last one.
        self.timestamp_us: i64 = floor_us
        # What may be promised: not a floor that was clamped to the clock's bound.
        self.head_us: i64 = min(floor_us, self._limit_us - max_ahead_us)
        self._next_head_us: i64 = self.head_us

    def take(self, commit_us: i64) -> None:
        """Set the time of a transaction that opens."""
        if commit_us > self._limit_us:
            self._limit_us = i64(self._now_us()) + self._max_ahead_us
        if commit_us > self._limit_us:
            if not self._is_clamping:
                self._is_clamping = True
                self._on_notice(
                    f"a transaction has a commit time {commit_us - self._limit_us} us later than "
                    f"this host's clock plus {self._max_ahead_us} us: its time in the log is "
                    f"clamped to that bound (SET timestamp was used, or a clock is wrong)"
                )
            commit_us = self._limit_us
        else:
            self._is_clamping = False
            self._next_head_us = max(self._next_head_us, commit_us)
        self.timestamp_us = max(self.timestamp_us, commit_us)

    def follow(self, time_us: i64) -> None:
        """Respect the time of a heartbeat row: what follows it in the log is no earlier."""
        if time_us > self._limit_us:
            self._limit_us = i64(self._now_us()) + self._max_ahead_us
        self.timestamp_us = max(self.timestamp_us, min(time_us, self._limit_us))

    def take_now(self) -> None:
        """Set the time of copied rows, which are no transaction: as early as possible."""
        if self.timestamp_us < 0:
            self.timestamp_us = self._now_us()

    def commit(self) -> None:
        """The transaction has ended: its time may be promised."""
        self.head_us = self._next_head_us

    def advance(self, head_us: i64) -> None:
        """Respect a head that was promised by something else."""
        self.timestamp_us = max(self.timestamp_us, head_us)
        if head_us > self.head_us:
            self.head_us = head_us
            self._next_head_us = max(self._next_head_us, head_us)
