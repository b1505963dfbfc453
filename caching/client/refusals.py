"""Keys whose fills were refused, because what was read was too old."""

from collections import OrderedDict
from threading import Lock

# More keys than are refused at a time; those refused longest ago are dropped.
KEYS_MAX = 10_000


class RefusedKeys:
    """Counts the refusals of each key in a row; after `primary_after`, its primary is read."""

    def __init__(self, primary_after: int) -> None:
        self._primary_after = primary_after
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def add(self, key: str) -> None:
        """Count a refusal."""
        with self._lock:
            self._counts[key] = self._counts.pop(key, 0) + 1
            if len(self._counts) > KEYS_MAX:
                self._counts.popitem(last=False)

    def clear(self, key: str) -> None:
        """Forget the refusals of a key that was filled."""
        if self._counts:
            with self._lock:
                self._counts.pop(key, None)

    def need_primary(self, key: str) -> bool:
        """Tell whether the key should be read from its primary."""
        return self._counts.get(key, 0) >= self._primary_after
