"""The invalidator of one key range of a cache: reads shard logs, changes floors and values.

Rules named in comments are those of docs/caching.md. Everything here may be repeated: a process
that is killed, or finds that a node of the store came back older, goes on from the stored
positions, and changes that it applies again have no effect.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from caching.errors import Reconnected, StoreFull
from caching.invalidating.effects import (
    AllFloors,
    Effect,
    Failovers,
    FloorAction,
    KeyChanges,
    effect_of,
)
from caching.invalidating.log import (
    InvalidatorStart,
    LogStream,
    PublishedPosition,
    StartAt,
    earliest,
    first_position,
    is_older,
    log_ends,
    reaches,
)
from caching.key_map import KeyMap
from caching.protocol import Floor
from caching.protocol.stored_forms import GENERATION_BYTES
from caching.stores.store import FloorStore, KeyChange
from event_token import EventToken, Retry, StreamPosition
from topics.errors import PositionTooOld
from topics.named_readers import ReaderReporter
from topics.records.vevent import VEvent
from topics.stream.subscriber import StreamSubscriber


@dataclass(slots=True)
class InvalidatorCounters:
    """Sums since the invalidator was started.

    `changes`: events read. `keys`: keys that they touched. `cas_retries`: buckets decided on again,
    because somebody wrote to them meanwhile. `store_rewinds`: times that a node came back older.
    """

    changes: int = 0
    keys: int = 0
    floors_raised: int = 0
    values_removed: int = 0
    floors_made: int = 0
    generations_renewed: int = 0
    cas_retries: int = 0
    store_rewinds: int = 0


@dataclass(slots=True, kw_only=True)
class InvalidatorStatus(InvalidatorCounters):
    """The state of an invalidator, with its sums.

    `state`: "standby" (another one has the lease), "running" or "waiting" (for the store or for
    Kafka, see `note`). `behind_s`: the age of the oldest shard, `oldest_shard`, by this host's
    clock. `position_age_s`: seconds since a position was last stored, None before the first time.
    """

    state: str
    behind_s: float | None
    oldest_shard: str | None
    position_age_s: float | None
    note: str = ""


# Events per call to the store: larger gains little, and delays the first of them.
EVENTS_MAX: Final = 500
# How long the lease of a dead invalidator keeps another one waiting. It is renewed with each
# publication; one that is late costs double work, nothing else.
LEASE_MS: Final = 3_000
# Between two tries while the store or Kafka does not answer, or another one has the lease.
PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class InvalidatorOptions:
    """How an invalidator works; see `CacheOptions` for what operators choose.

    `lease_ms` 0: no lease is taken, and several may work at once.
    """

    start: InvalidatorStart = StartAt.STORED
    batch_ms: int = 5
    publish_ms: int = 500
    renews_on_failover: bool = True
    lease_ms: int = LEASE_MS


class Invalidator:
    """Keeps a cache's floors at the changes of a key range. One thread; `run` until stopped.

    `open_floors` connects to the store, again after each standby. `report` gets a status after
    every publication and whenever something happens that operators should know (its `note`).
    Halts of the stream and of the KeyMap end `run`; everything that passes is waited for.
    `reporter`: reports the stored position as a named reader does.
    """

    def __init__(
        self,
        stream: LogStream,
        keys: KeyMap,
        open_floors: Callable[[], FloorStore],
        options: InvalidatorOptions,
        report: Callable[[InvalidatorStatus], None],
        reporter: ReaderReporter | None = None,
    ) -> None:
        """Connect to nothing yet."""
        self.counters = InvalidatorCounters()
        self._stream = stream
        self._range = str(stream.key_range)
        self._keys = keys
        self._open_floors = open_floors
        self._options = options
        self._report = report
        self._reporter = reporter
        self._holder = secrets.token_bytes(16)
        self._floors = open_floors()
        self._events: StreamSubscriber | None = None
        self._done: StreamPosition | None = None  # everything before it has been applied
        self._after: StreamPosition | None = None  # the position after `_pending`
        self._pending: list[Effect] = []  # taken, and not known to be applied
        self._seen: dict[str, bytes | None] = {}  # the stored positions as last seen, by node
        self._found: dict[str, bytes | None] = {}  # on new connections that are not gone on from
        self._start = options.start
        self._failovers = Failovers(StreamPosition(0, 0))
        self._count = 0
        self._is_resumed = False
        self._is_unresumable = False  # a gap: every node needs new generations (rule 10)
        self._published_s: float | None = None
        self._due_s = 0.0
        self._state = "waiting"

    def run(self, stop: threading.Event) -> None:
        """Invalidate until `stop` is set."""
        try:
            while not stop.is_set():
                try:
                    self._step(stop)
                except Reconnected as error:
                    self._is_resumed = False
                    self._report_state("running", str(error))
                except PositionTooOld as error:
                    self._lose_place(error)
                except Retry as error:  # a StoreError, or Kafka: nothing has moved
                    self._report_state("waiting", str(error))
                    stop.wait(PAUSE_S)
        finally:
            self._close_events()
            self._floors.close()
            if self._reporter is not None:
                self._reporter.close()

    def _step(self, stop: threading.Event) -> None:
        if not self._is_resumed:
            if not self._hold_lease(stop):
                return
            self._resume()
        if not self._pending:
            self._take(stop)
        self._apply()
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + self._options.publish_ms / 1_000
            if not self._hold_lease(stop):
                return
            self._publish()
            self._note_position()
            self._make_floors()
            self._report_state("running")

    def _note_position(self) -> None:
        """Report the earliest of the stored places: a restart needs the logs from there on."""
        if self._reporter is None:
            return
        stored = [each and PublishedPosition.parse(each) for each in self._seen.values()]
        places = [each.position for each in stored if each]
        if len(places) < len(stored):  # a flushed node has no place before it is renewed
            return
        begin = earliest(places, self._stream.ancestors() if self._is_elsewhere() else {})
        self._reporter.note(lambda: begin)

    def _hold_lease(self, stop: threading.Event) -> bool:
        """Take or extend the lease; False after a wait in which another invalidator had it."""
        if not self._options.lease_ms:
            return True
        if not self._is_resumed:
            self._note_stored(self._floors.resume(self._range))
        if self._floors.lease(self._range, self._holder, self._options.lease_ms):
            return True
        if self._state != "standby":
            self._report_state("standby", f"another invalidator has the lease of {self._range}")
            if self._reporter is not None:  # the other one reports under the name from now on
                self._reporter.drop()
        self._close_events()
        self._is_resumed, self._done = False, None
        stop.wait(PAUSE_S)
        # Its positions move on meanwhile: a new connection reads them again.
        self._floors.close()
        self._floors, self._seen, self._found = self._open_floors(), {}, {}
        return False

    # Where to go on -----------------------------------------------------------------------------

    def _note_stored(self, found: dict[str, bytes | None]) -> None:
        self._found |= found
        self._seen |= found

    def _resume(self) -> None:
        """Go on from the earliest position of all nodes with new connections (rules 10, 11)."""
        self._note_stored(self._floors.resume(self._range))
        found = {node: PublishedPosition.parse(each) for node, each in self._found.items()}
        stored = [each for each in found.values() if each is not None]
        places = [each.position for each in stored]
        if self._is_unresumable or self._start is StartAt.LATEST:
            self._is_unresumable = True
            begin = first_position(self._stream, StartAt.LATEST, [])
        elif self._done is None:
            begin = first_position(self._stream, self._start, places)
        else:
            begin = earliest([self._done, *places], self._stream.ancestors())
            self.counters.store_rewinds += begin.shards != self._done.shards
        self._close_events()
        self._floors.store_layout()
        self._done, self._pending = begin, []
        self._count = max([self._count, *(each.count for each in stored)])
        # The ends of the logs are asked for after `begin` is known: no change is between them.
        everywhere = list(self._seen) if self._is_unresumable else []
        if lost := everywhere or [node for node, each in found.items() if each is None]:
            self._renew(lost)
        self._is_resumed, self._is_unresumable, self._start = True, False, StartAt.STORED
        self._found = {}
        self._failovers = Failovers(begin)

    def _lose_place(self, error: PositionTooOld) -> None:
        self._report_state(
            "running", f"{error}. All values are taken out of use, and the logs' ends follow"
        )
        self._close_events()
        self._is_resumed, self._is_unresumable, self._pending = False, True, []

    def _renew(self, nodes: list[str]) -> None:
        """Give all floors of nodes new generations at the logs' ends, then publish (rule 10)."""
        assert self._done is not None  # noqa: S101 - nodes are renewed once the start is known
        self._floors.store_layout()
        ends = self._ends()
        renewed = self._floors.change_floors(nodes, partial(_renewed, ends=ends))
        self.counters.generations_renewed += renewed
        self._count += 1
        new = PublishedPosition(self._count, self._done).to_bytes()
        lost = self._floors.publish(self._range, {n: (self._seen.get(n), new) for n in nodes})
        self._seen |= {**dict.fromkeys(nodes, new), **lost}
        self._report_state(
            "running",
            f"{len(nodes)} node(s) of the store had no position to go on from: "
            f"{renewed} floors got new generations",
        )

    def _ends(self) -> Iterable[EventToken]:
        stream, read = self._stream, self._done.shards if self._done else ()
        return log_ends(stream.config, stream.keyspace, stream.schema_ids, read).values()

    # Changes ------------------------------------------------------------------------------------

    def _take(self, stop: threading.Event) -> None:
        """Gather events for some milliseconds after the first one, or until a publication."""
        if self._events is None:
            self._events = self._open_events()
        first = self._events.take(EVENTS_MAX, max(0.0, self._due_s - time.monotonic()))
        events = list(first)
        until_s = time.monotonic() + self._options.batch_ms / 1_000
        while first and len(events) < EVENTS_MAX and not stop.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            events += self._events.take(EVENTS_MAX - len(events), left_s)
        self._pending = list(self._effects(events))
        self._after = self._events.position
        self.counters.changes += len(events)

    def _effects(self, events: Iterable[VEvent]) -> Iterator[Effect]:
        changes: dict[KeyChange, None] = {}
        for event in events:
            failover = self._failovers.notice(event)
            renewal = failover if self._options.renews_on_failover else None
            effect = effect_of(event, self._keys)
            if isinstance(effect, KeyChanges):
                changes |= dict.fromkeys(effect.changes)
            for every in (renewal, effect):
                if isinstance(every, AllFloors):
                    yield KeyChanges(tuple(changes))
                    changes = {}
                    yield every
        yield KeyChanges(tuple(changes))

    def _apply(self) -> None:
        """Apply the pending effects; one that raises is applied again, in order."""
        while self._pending:
            effect = self._pending[0]
            if isinstance(effect, AllFloors):
                self._change_all(effect)
            elif effect.changes:
                done = self._floors.invalidate(effect.changes)
                self.counters.keys += len(effect.changes)
                self.counters.floors_raised += done.floors_raised
                self.counters.values_removed += done.values_removed
                self.counters.cas_retries += done.repeats
            del self._pending[0]
        self._done = self._after or self._done

    def _change_all(self, effect: AllFloors) -> None:
        if effect.every is FloorAction.RAISE:
            changed = self._floors.change_floors(
                self._floors.nodes, lambda floor: floor.raised(effect.token)
            )
            self.counters.floors_raised += changed
            return
        changed = self._floors.change_floors(
            self._floors.nodes, partial(_renewed, ends=[effect.token])
        )
        self.counters.generations_renewed += changed
        self._report_state("running", f"{effect.reason}: {changed} floors got new generations")

    # Positions and floors -----------------------------------------------------------------------

    def _publish(self) -> None:
        """Store the position on every node, never over a newer one (rule 8)."""
        assert self._done is not None  # noqa: S101 - it is resumed
        ancestors = self._stream.ancestors() if self._is_elsewhere() else {}
        found = {node: PublishedPosition.parse(stored) for node, stored in self._seen.items()}
        due = {
            node: self._seen[node]
            for node, each in found.items()
            if each is not None and reaches(self._done, each.position, ancestors)
        }
        self._count += 1
        new = PublishedPosition(self._count, self._done).to_bytes()
        try:
            lost = self._floors.publish(self._range, {n: (seen, new) for n, seen in due.items()})
        except StoreFull as error:
            self._report_state("running", f"{error}: the position was not stored")
            return
        self._seen |= {**dict.fromkeys(due, new), **lost}
        others = [each for stored in lost.values() if (each := PublishedPosition.parse(stored))]
        self._count = max([self._count, *(each.count for each in others)])
        # A node may come back older on a connection that stays open: REPLICAOF and back.
        if back := {
            n: s for n, s in lost.items() if is_older(PublishedPosition.parse(s), found[n])
        }:
            self._found |= back
            raise Reconnected(next(iter(back)))
        if due.keys() - lost.keys():
            self._published_s = time.monotonic()
        if flushed := [
            n for n, stored in self._seen.items() if PublishedPosition.parse(stored) is None
        ]:
            self._renew(flushed)

    def _is_elsewhere(self) -> bool:
        """Return whether a stored position is of other shards, which only the topology relates."""
        assert self._done is not None  # noqa: S101 - it is resumed
        stored = (PublishedPosition.parse(each) for each in self._seen.values())
        return any(
            each and each.position.shards.keys() != self._done.shards.keys() for each in stored
        )

    def _make_floors(self) -> None:
        """Make the floors that clients found missing, at the logs' ends (rule 9)."""
        wanted = self._floors.wanted()
        if not wanted:
            return
        claim = self._floors.claim(wanted)
        tokens = {token.shard: token for token in self._ends()}
        made = self._floors.make_floors(
            claim, lambda: Floor(secrets.token_bytes(GENERATION_BYTES), tokens)
        )
        self.counters.floors_made += made

    # The stream, and reports of the state ------------------------------------------------------

    def _open_events(self) -> StreamSubscriber:
        assert self._done is not None  # noqa: S101 - it is resumed
        return self._stream.open_events(self._done, self._keys.tables)

    def _close_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    def _report_state(self, state: str, note: str = "") -> None:
        self._state = state
        read_us = None if self._events is None else self._events.read_us
        behind_s, oldest = self._stream.behind(read_us or {})
        age_s = None if self._published_s is None else time.monotonic() - self._published_s
        self._report(
            InvalidatorStatus(
                state=state,
                **asdict(self.counters),
                behind_s=behind_s,
                oldest_shard=oldest,
                position_age_s=age_s,
                note=note,
            )
        )


def _renewed(floor: Floor, ends: Iterable[EventToken]) -> Floor:
    """Return a floor with a new generation, raised by tokens."""
    for token in ends:
        floor = floor.renewed(secrets.token_bytes(GENERATION_BYTES), token)
    return floor
