"""Floors as one invalidator last wrote them, so that it need not read and parse them again."""

from dataclasses import dataclass

from caching.protocol import Floor


@dataclass(frozen=True, slots=True)
class KnownFloor:
    """A floor with its stored form."""

    stored: bytes
    floor: Floor


class KnownFloors:
    """At most twice `size_max` floors by bucket, about 1 kB each. For one thread.

    A floor that somebody else has written meanwhile is out of date: whoever decides by it finds
    out by the compare-and-set, and forgets it.
    """

    def __init__(self, size_max: int) -> None:
        """Know nothing; 0 keeps nothing."""
        self._size_max = size_max
        self._newer: dict[int, KnownFloor] = {}
        self._older: dict[int, KnownFloor] = {}

    def get(self, bucket: int) -> KnownFloor | None:
        """Return the floor of a bucket, None if it is not known."""
        return self._newer.get(bucket) or self._older.get(bucket)

    def note(self, bucket: int, known: KnownFloor) -> None:
        """Remember the floor that was written to a bucket."""
        if not self._size_max:
            return
        if len(self._newer) >= self._size_max:
            self._older, self._newer = self._newer, {}
        self._newer[bucket] = known

    def forget(self, bucket: int) -> None:
        """Have the floor of a bucket read again."""
        self._newer.pop(bucket, None)
        self._older.pop(bucket, None)
