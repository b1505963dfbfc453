"""Tells an idle stream from one that shards hold back. Pure; times are on a clock of the caller."""

from topics.reading.followed_shards import Wait


class Stall:
    """Which shards have held a stream back since when, from what it is seen to wait for."""

    def __init__(self, now_ms: int) -> None:
        """Begin with a stream that is not held back."""
        self._frontier_us: int | None = None
        self._since_ms = now_ms
        self._shards: frozenset[str] = frozenset()
        self._reason = ""
        self._told: frozenset[str] = frozenset()

    def observe(self, wait: Wait | None, frontier_us: int | None, now_ms: int) -> None:
        """Note what the stream waits for now; any progress of the frontier ends a stall."""
        if wait is None or frontier_us != self._frontier_us:
            self._frontier_us = frontier_us
            self._since_ms = now_ms
            self._shards = self._told = frozenset()
        if wait is not None:
            # A shard that advances may still be waited for at one moment, never at all of them.
            held = frozenset(wait.shards)
            self._shards = held & self._shards or held
            self._reason = wait.reason

    def text(self, at_least_ms: int, now_ms: int) -> str | None:
        """Return what the stream has waited for for so long; None while it advances."""
        if not self._shards or now_ms - self._since_ms < at_least_ms:
            return None
        return f"waiting for {', '.join(sorted(self._shards))}: {self._reason}"

    def news(self, at_least_ms: int, now_ms: int) -> str | None:
        """Return `text` once per stall, and again when fewer shards are left that hold it back."""
        found = self.text(at_least_ms, now_ms)
        if found is None or (self._told and not self._shards < self._told):
            return None
        self._told = self._shards
        return found
