"""The process that invalidates the cache, and what takes its place with ordinary caches."""

from typing import Final, Protocol

from shardstream.demo.cached.fresh import CACHE
from shardstream.demo.workers import Workers

KEY_MAP: Final = "shardstream.demo.cached.keys:KEYS"


class Invalidation(Protocol):
    """Something that follows the change stream and removes entries of changed rows."""

    def start(self, back_s: int = 0) -> None:
        """Start, `back_s` seconds before where it would go on."""

    def check(self) -> None:
        """Raise what ended it."""

    def kill(self) -> None:
        """Kill it without warning."""


class Together:
    """Several of them, which start and are killed together."""

    def __init__(self, *parts: Invalidation) -> None:
        """Start nothing yet."""
        self._parts = parts

    def start(self, back_s: int = 0) -> None:
        """Start all."""
        for each in self._parts:
            each.start(back_s)

    def check(self) -> None:
        """Raise what ended one of them."""
        for each in self._parts:
            each.check()

    def kill(self) -> None:
        """Kill all."""
        for each in self._parts:
            each.kill()


class Invalidator:
    """`shardstream invalidate`, as a process."""

    def __init__(self, workers: Workers, keyspace: str) -> None:
        """Start nothing yet."""
        self._workers = workers
        self._keyspace = keyspace
        self._starts = 0

    def start(self, back_s: int = 0) -> None:
        """Start, `back_s` seconds back."""
        self._starts += 1
        options = ["--cache", CACHE, *(("--from", str(back_s)) if back_s else ())]
        self._workers.start(self._name, "invalidate", self._keyspace, *options)

    def check(self) -> None:
        """Do nothing: the demo's commands are looked after together."""

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._workers.kill_one(self._name)

    @property
    def _name(self) -> str:
        return f"invalidator_{self._starts}"
