"""One thread that looks at all keyspaces again and again; every request reads what it saw last."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from event_token.errors import Rebuild, Retry, ShardstreamError
from shardstream.status.history import Sample, next_samples
from shardstream.status.stops import Stop, next_stops
from topics.fleet.view import KeyspaceView

# As often as `shardstream status --watch` looks.
REFRESH_S: Final = 1.0
# With REFRESH_S before it, an outage of Kafka is told within 5 s.
ANSWER_S: Final = 3.0
# What is older is not passed off as the present state. A look takes a fraction of a second.
LATE_S: Final = REFRESH_S + ANSWER_S + 1.0
# Reading what Kafka has announced may take 30 s of itself.
STALE_S: Final = 30.0
# A look that waits for a broker is not worth waiting for.
_JOIN_S: Final = 2.0

_log: Final = logging.getLogger("shardstream.status")


class Fleet(Protocol):
    """What looks at keyspaces, such as `topics.fleet.look.FleetWatch`."""

    def look(self, keyspace: str) -> KeyspaceView:
        """Return how the shards are now."""
        ...


OpenFleet = Callable[[], AbstractContextManager[Fleet]]


@dataclass(frozen=True, slots=True)
class KeyspaceLook:
    """The last view of a keyspace, None before the first; `error`: why the newest look failed.

    `seen_s`: when the view was taken, in seconds of the monotonic clock. `stops`: which shards have
    stood still since the first look, the newest first. `samples`: the last two minutes.
    """

    keyspace: str
    view: KeyspaceView | None = None
    seen_s: float | None = None
    error: str = ""
    stops: tuple[Stop, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetState:
    """All keyspaces. `number` counts the turns of the thread; 0: there has been none yet.

    `at_us`: when the last turn ended, by this host's clock; `turned_s`: by the monotonic clock.
    """

    number: int
    looks: tuple[KeyspaceLook, ...]
    at_us: int
    turned_s: float

    @property
    def age_s(self) -> float:
        """How long ago the last turn ended, or the thread was made."""
        return time.monotonic() - self.turned_s

    @property
    def is_late(self) -> bool:
        """Whether the turn that is under way takes too long to go by the last one."""
        return self.number > 0 and self.age_s > LATE_S

    @property
    def is_stale(self) -> bool:
        """Whether the thread has stopped turning."""
        return self.age_s > STALE_S


class FleetRefresh:
    """Looks at keyspaces in a thread. A context manager."""

    def __init__(
        self, open_fleet: OpenFleet, keyspaces: Sequence[str], interval_s: float = REFRESH_S
    ) -> None:
        """Nothing is read before the context is entered."""
        self._open_fleet = open_fleet
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-refresh", daemon=True)
        looks = tuple(map(KeyspaceLook, keyspaces))
        self._state = FleetState(0, looks, time.time_ns() // 1_000, time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def state(self) -> FleetState:
        """Return what was seen last; late, as a failed look. Any thread may call it."""
        state = self._state
        if not state.is_late:
            return state
        error = f"no look has ended for {state.age_s:.0f} s: Kafka or the schema registry is slow"
        looks = tuple(replace(look, error=look.error or error) for look in state.looks)
        return replace(state, looks=looks)

    @property
    def is_over(self) -> bool:
        """Whether the thread has been told to end."""
        return self._stop.is_set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._open_fleet() as fleet:
                    while self._turn(fleet):
                        self._stop.wait(self._interval_s)
            except ShardstreamError as error:
                self._publish([self._failed(look, error) for look in self._state.looks])
            self._stop.wait(self._interval_s)

    def _turn(self, fleet: Fleet) -> bool:
        """Look at each keyspace; return False once the fleet has to be opened again, or at the end.

        After a keyspace without an answer the others are not asked: they are on the same brokers.
        """
        looks = list(self._state.looks)
        broken: ShardstreamError | None = None
        for i, before in enumerate(looks):
            if self._stop.is_set():
                return False
            try:
                if broken is not None:
                    raise broken
                view = fleet.look(before.keyspace)
            except ShardstreamError as error:
                looks[i] = self._failed(before, error)
                broken = error if isinstance(error, Retry | Rebuild) else None
            else:
                if before.error:
                    _log.warning("%s: can be looked at again", before.keyspace)
                now_us = time.time_ns() // 1_000
                looks[i] = KeyspaceLook(
                    before.keyspace,
                    view,
                    time.monotonic(),
                    stops=next_stops(before.stops, view, now_us),
                    samples=next_samples(before.samples, view, now_us),
                )
        self._publish(looks)
        return broken is None

    def _failed(self, before: KeyspaceLook, error: ShardstreamError) -> KeyspaceLook:
        text = str(error)
        if text != before.error:
            _log.warning("%s: cannot be looked at: %s", before.keyspace, text)
        return replace(before, error=text)

    def _publish(self, looks: Sequence[KeyspaceLook]) -> None:
        number = self._state.number + 1
        self._state = FleetState(number, tuple(looks), time.time_ns() // 1_000, time.monotonic())
