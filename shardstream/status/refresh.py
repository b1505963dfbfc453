"""Reads the state of all keyspaces every second, in one thread; requests get the last state."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from event_token.errors import Rebuild, Retry, ShardstreamError
from shardstream.settings.model import Settings
from topics.fleet.look import FleetWatch
from topics.fleet.view import KeyspaceView, ShardCondition, ShardView
from topics.schemas import open_schema_ids

# The page shows two minutes, with a sample every second.
SAMPLES_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Sample:
    """The shards of a keyspace at one time: by shard, records per second and level."""

    at_us: int
    shards: Mapping[str, tuple[float, str]]


def next_samples(samples: Sequence[Sample], view: KeyspaceView, now_us: int) -> tuple[Sample, ...]:
    """Return the samples with that of `now_us` added, the oldest first."""
    shards = {each.shard: (round(each.records_per_s, 1), each.level.value) for each in view.shards}
    return (*samples, Sample(now_us, shards))[-SAMPLES_MAX:]


def history_json(keyspaces: Mapping[str, Sequence[Sample]]) -> str:
    """Return the samples of all keyspaces, as `/history.json` does."""
    return json.dumps(
        {
            name: [{"at_us": sample.at_us, "shards": sample.shards} for sample in samples]
            for name, samples in keyspaces.items()
        }
    )


# More is not read; enough for a night.
STOPS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Stop:
    """A period in which the producer of a shard wrote nothing. `until_us` None: it has not ended.

    `since_us`: when the producer wrote last. `server`: the server it had streamed from. `reason`:
    the error that ended it, `error` its class; both
    "" if it left none.
    """

    shard: str
    since_us: int
    until_us: int | None
    server: str
    reason: str = ""
    error: str = ""


def next_stops(stops: Sequence[Stop], view: KeyspaceView, now_us: int) -> tuple[Stop, ...]:
    """Return the stops as of `now_us`, the newest first.

    A shard whose first producer has not written yet has not stopped.
    """
    silent = {
        shard.shard: shard for shard in view.shards if shard.condition is ShardCondition.SILENT
    }
    known = [
        _continued(stop, silent.get(stop.shard), now_us) if stop.until_us is None else stop
        for stop in stops
    ]
    under_way = {stop.shard for stop in known if stop.until_us is None}
    new = [
        _with_reason(Stop(shard.shard, shard.written_us, None, shard.server), shard)
        for shard in silent.values()
        if shard.written_us is not None and shard.shard not in under_way
    ]
    return (*new, *known)[:STOPS_MAX]


def _continued(stop: Stop, silent: ShardView | None, now_us: int) -> Stop:
    """Update a stop that had not ended; `silent`: the shard, if the stop has not ended now."""
    if silent is None:
        return replace(stop, until_us=now_us)
    return _with_reason(stop, silent)


def _with_reason(stop: Stop, shard: ShardView) -> Stop:
    if shard.stopped is None:
        return stop
    return replace(stop, reason=str(shard.stopped), error=shard.stopped.error)


# As often as `shardstream status --watch`.
REFRESH_S: Final = 1.0
# With REFRESH_S before it, an outage of Kafka is shown within 5 s.
ANSWER_S: Final = 3.0
# An older state is shown as old. A refresh takes a fraction of a second.
LATE_S: Final = REFRESH_S + ANSWER_S + 1.0
# Reading the records that Kafka has announced may take 30 s.
STALE_S: Final = 30.0
# A refresh that waits for a broker is not worth waiting for.
_JOIN_S: Final = 2.0

_log: Final = logging.getLogger("shardstream.status")


class Fleet(Protocol):
    """Reads the state of keyspaces, as `topics.fleet.look.FleetWatch` does."""

    def look(self, keyspace: str) -> KeyspaceView:
        """Return how the shards are now."""
        ...


OpenFleet = Callable[[], AbstractContextManager[Fleet]]


def open_fleet(settings: Settings, answer_s: float | None = None) -> FleetWatch:
    """Return a watch of the shards; `answer_s`: how long the brokers may take to answer."""
    client = settings.kafka_client()
    if answer_s is not None:
        client = client.answering_within(answer_s)
    return FleetWatch(client, open_schema_ids(client, settings.kafka.schema_registry_url))


@dataclass(frozen=True, slots=True)
class KeyspaceState:
    """The last view of a keyspace, None before the first; `error`: why the newest read failed.

    `seen_s`: when the view was taken, in seconds of the monotonic clock. `stops`: the stops of
    shards since the first view, the newest first. `samples`: the last two minutes.
    """

    keyspace: str
    view: KeyspaceView | None = None
    seen_s: float | None = None
    error: str = ""
    stops: tuple[Stop, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetState:
    """All keyspaces. `number` counts the refreshes; 0 before the first.

    `at_us`: when the last refresh ended, by this host's clock; `turned_s`: by the monotonic clock.
    """

    number: int
    keyspaces: tuple[KeyspaceState, ...]
    at_us: int
    turned_s: float

    @property
    def age_s(self) -> float:
        """Time since the last refresh ended, or since the start."""
        return time.monotonic() - self.turned_s

    @property
    def is_late(self) -> bool:
        """Whether the refresh under way takes so long that the state may be outdated."""
        return self.number > 0 and self.age_s > LATE_S

    @property
    def is_stale(self) -> bool:
        """Whether the thread has stopped."""
        return self.age_s > STALE_S


class FleetRefresh:
    """Reads the state of keyspaces in a thread. A context manager."""

    def __init__(
        self, open_fleet: OpenFleet, keyspaces: Sequence[str], interval_s: float = REFRESH_S
    ) -> None:
        """Nothing is read before the context is entered."""
        self._open_fleet = open_fleet
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-refresh", daemon=True)
        states = tuple(map(KeyspaceState, keyspaces))
        self._state = FleetState(0, states, time.time_ns() // 1_000, time.monotonic())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def state(self) -> FleetState:
        """Return the last state, with an error if it is late. Any thread may call it."""
        state = self._state
        if not state.is_late:
            return state
        error = (
            f"no refresh has ended for {state.age_s:.0f} s: Kafka or the schema registry is slow"
        )
        keyspaces = tuple(replace(each, error=each.error or error) for each in state.keyspaces)
        return replace(state, keyspaces=keyspaces)

    @property
    def is_over(self) -> bool:
        """Whether the thread was asked to end."""
        return self._stop.is_set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._open_fleet() as fleet:
                    while self._turn(fleet):
                        self._stop.wait(self._interval_s)
            except ShardstreamError as error:
                self._publish([self._failed(each, error) for each in self._state.keyspaces])
            self._stop.wait(self._interval_s)

    def _turn(self, fleet: Fleet) -> bool:
        """Read each keyspace; return False if the fleet has to be opened again, or at the end.

        After a keyspace without an answer the others are not read: they are on the same brokers.
        """
        keyspaces = list(self._state.keyspaces)
        broken: ShardstreamError | None = None
        for i, before in enumerate(keyspaces):
            if self._stop.is_set():
                return False
            try:
                if broken is not None:
                    raise broken
                view = fleet.look(before.keyspace)
            except ShardstreamError as error:
                keyspaces[i] = self._failed(before, error)
                broken = error if isinstance(error, Retry | Rebuild) else None
            else:
                if before.error:
                    _log.warning("%s: can be read again", before.keyspace)
                now_us = time.time_ns() // 1_000
                keyspaces[i] = KeyspaceState(
                    before.keyspace,
                    view,
                    time.monotonic(),
                    stops=next_stops(before.stops, view, now_us),
                    samples=next_samples(before.samples, view, now_us),
                )
        self._publish(keyspaces)
        return broken is None

    def _failed(self, before: KeyspaceState, error: ShardstreamError) -> KeyspaceState:
        text = str(error)
        if text != before.error:
            _log.warning("%s: cannot be read: %s", before.keyspace, text)
        return replace(before, error=text)

    def _publish(self, keyspaces: Sequence[KeyspaceState]) -> None:
        number = self._state.number + 1
        self._state = FleetState(
            number, tuple(keyspaces), time.time_ns() // 1_000, time.monotonic()
        )
