"""Whether a cache is behind: whether its invalidator's position still moves."""

from collections.abc import Callable
from dataclasses import dataclass

# Positions are looked at this often within `max_behind_s`, so that it is kept to a tenth.
_LOOKS = 10


@dataclass(slots=True)
class _Seen:
    position: bytes | None
    moved_at: float
    looked_at: float


class PositionWatch:
    """When each position was last seen to move, by the monotonic clock of this process.

    A position lies on a node, for a key range. One that does not exist does not move either.
    """

    def __init__(self, max_behind_s: float, clock: Callable[[], float]) -> None:
        self._max_behind_s = max_behind_s
        self._clock = clock
        self._seen: dict[tuple[str, str], _Seen] = {}

    def is_current(self, place: tuple[str, str]) -> bool:
        """Tell whether a position is neither due to be looked at nor behind."""
        seen = self._seen.get(place)
        if seen is None:
            return False
        now = self._clock()
        is_due = now - seen.looked_at >= self._max_behind_s / _LOOKS
        return not is_due and now - seen.moved_at <= self._max_behind_s

    def is_due(self, place: tuple[str, str]) -> bool:
        """Tell whether it is time to look at a position; the caller then does."""
        seen, now = self._seen.get(place), self._clock()
        if seen is None:
            self._seen[place] = _Seen(None, now, now)
            return True
        if now - seen.looked_at < self._max_behind_s / _LOOKS:
            return False
        seen.looked_at = now
        return True

    def look(self, place: tuple[str, str], position: bytes | None) -> None:
        """Note what is stored there now."""
        seen = self._seen[place]
        if position != seen.position:
            seen.position, seen.moved_at = position, self._clock()

    def is_behind(self, place: tuple[str, str]) -> bool:
        """Tell whether the position has not moved for longer than allowed."""
        seen = self._seen.get(place)
        return seen is not None and self._clock() - seen.moved_at > self._max_behind_s
