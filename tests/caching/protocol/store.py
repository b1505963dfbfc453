"""A model of a store: nodes that are flushed, evict, or come back older than they were."""

from dataclasses import dataclass, field


class ConnectionLost(Exception):  # noqa: N818 - what happened
    """The node was restarted since this connection to it was opened."""


@dataclass
class Node:
    """One node; `epoch` counts its restarts, which end every connection."""

    contents: dict[str, bytes] = field(default_factory=dict)
    snapshot: dict[str, bytes] = field(default_factory=dict)
    epoch: int = 0

    def replace(self, expected: dict[str, bytes | None], writes: dict[str, bytes | None]) -> bool:
        """Write all (None deletes) if everything is still as expected, in one step."""
        if any(self.contents.get(name) != value for name, value in expected.items()):
            return False
        for name, value in writes.items():
            if value is None:
                self.contents.pop(name, None)
            else:
                self.contents[name] = value
        return True

    def add(self, name: str, value: bytes) -> None:
        """Write what is not there yet."""
        self.contents.setdefault(name, value)

    def flush(self) -> None:
        """Lose everything, on open connections (FLUSHALL)."""
        self.contents.clear()

    def save(self) -> None:
        """Take a snapshot."""
        self.snapshot = dict(self.contents)

    def restore(self) -> None:
        """Come back as the snapshot was: acknowledged writes are gone."""
        self.contents = dict(self.snapshot)
        self.epoch += 1
