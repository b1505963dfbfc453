"""The merged stream of a keyspace as a plain Python iterator."""

import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import Any, Final, Self, TypeVar

from event_token import ClockUncertainty, EventToken, KeyRange, Order, StreamPosition, compare
from event_token.errors import Retry, ShardstreamError, UsageError
from topics.errors import ReaderClosed
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import retired_us
from topics.keyspace.topology import TopologyLook
from topics.named_readers import ReaderReporter, ReaderReports
from topics.names import check_keyspace
from topics.reading.followed_shards import Wait
from topics.reading.planner import MaxHold, Mode, Planner, Strict, Unmerged, UnmergedPlanner
from topics.reading.row_filters import ReadBeforeHop
from topics.records.event_decoder import EventDecoder
from topics.records.vevent import VEvent
from topics.schemas import open_schema_ids
from topics.start.positions import known_topology, resolve_start
from topics.start.start_forms import ParsedStart, Start, parse_start
from topics.start.unmarked_hop import unmarked_hop, unmarked_targets
from topics.stream.delivery import Delivery, Place, Taken, TakenRows
from topics.stream.merged_stream import MergedStream, StreamParts, UnmergedStream
from topics.stream.progress_feed import ProgressFeed

Table = tuple[str, str]
ReadingMode = Mode | Unmerged

# Of Arrow batches. One ends with a transaction from half of these on, and at the latest at one.
BATCH_ROWS_MAX: Final = 100_000
BATCH_BYTES_MAX: Final = 64 * 1024 * 1024
# After this long a batch ends with what it has, unless a transaction is coming.
BATCH_WAIT_MS: Final = 500


T = TypeVar("T")


def _checked(name: str, given: T, kinds: type | UnionType, wanted: str) -> T:
    """Return an argument unchanged; UsageError if it is of another type."""
    if isinstance(given, kinds):
        return given
    raise _wrong(name, given, wanted)


def _wrong(name: str, given: object, wanted: str) -> UsageError:
    return UsageError(f"{name} {given!r} is of type {type(given).__name__}: pass {wanted}")


def checked_key_range(key_range: str) -> KeyRange:
    """Return the key range of a text such as `-80`."""
    wanted = "a text such as '-80', or '-' for all"
    return KeyRange.parse(_checked("key_range", key_range, str, wanted))


def checked_timeout_s(timeout_s: object) -> float | None:
    """Return seconds; None never ends."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s >= 0:
        return timeout_s
    raise _wrong("idle_timeout_s", timeout_s, "a number of seconds, or None for no end")


# As statements quote names, for a database whose name has a dot.
_QUOTED: Final = re.compile(r"`((?:[^`]|``)+)`\.`((?:[^`]|``)+)`")


def checked_tables(tables: object) -> frozenset[Table] | None:
    """Return (database, table) pairs of `database.table` names; None for all tables."""
    if tables is None:
        return None
    if isinstance(tables, str) or not isinstance(tables, Iterable):
        raise _wrong("tables", tables, "a list of database.table names, or None for all")
    return frozenset(map(_table, tables))


def _table(name: object) -> Table:
    if isinstance(name, str):
        quoted = _QUOTED.fullmatch(name)
        if quoted is not None:
            return quoted[1].replace("``", "`"), quoted[2].replace("``", "`")
        database, dot, table = name.partition(".")
        if database and dot and table:
            return database, table
    raise UsageError(f"table {name!r}: write it as database.table")


# Events made ready at a time; each keeps its run alive for its position.
RUN_ROWS_MAX: Final = 256
# The same of rows that are read for their records, which have one object for a run.
RECORD_RUN_ROWS_MAX: Final = 4_000
# How soon a waiting iterator notices `close` or the end of `idle_timeout_s`.
POLL_S: Final = 0.1
# How often a waiting stream checks the topology for reshards without marks.
TOPOLOGY_LOOK_S: Final = 5.0
# After this time `close` returns, and the iterating thread closes the consumers itself.
CLOSE_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ReaderStats:
    """What a subscriber has read since it was made.

    `events`: ready for the caller, with those that it has not asked for yet. `late` and
    `possible_duplicates`: those of them that are marked so. `hops`: over reshards.
    """

    events: int
    late: int
    possible_duplicates: int
    hops: int


class StreamSubscriber:
    """The stream that applications read; `shardstream.Subscriber` documents it for them."""

    def __init__(
        self,
        keyspace: str,
        key_range: str = "-",
        start: Start = "latest",
        *,
        config: ClientConfig,
        registry_url: str | None = None,
        mode: ReadingMode = Strict(),  # noqa: B008 - frozen, and has no state
        idle_timeout_s: float | None = None,
        tables: Iterable[str] | None = None,
        clock: ClockUncertainty = ClockUncertainty(),  # noqa: B008 - frozen, and has no state
        name: str | None = None,
    ) -> None:
        """Check the arguments."""
        self.keyspace = check_keyspace(keyspace)
        self.key_range = checked_key_range(key_range)
        self._start: ParsedStart = parse_start(start)
        self._config = _checked(
            "config", config, ClientConfig, 'a ClientConfig({"bootstrap.servers": ...})'
        )
        self._registry_url = registry_url
        self._mode = _checked(
            "mode",
            mode,
            ReadingMode,
            "Strict(), MaxHold(max_hold_ms) or Unmerged()",
        )
        self._idle_timeout_s = checked_timeout_s(idle_timeout_s)
        self._tables = checked_tables(tables)
        self.clock = _checked(
            "clock", clock, ClockUncertainty, "a ClockUncertainty(uncertainty_us=...)"
        )
        self._reporter: ReaderReporter | None = None
        if name is not None:
            self._reporter = ReaderReporter(self._config, keyspace, name, self.key_range)
        self._schema_ids = open_schema_ids(self._config, registry_url)
        self._ready: deque[Any] = deque()  # VEvent, or Taken in stretches
        self._session: MergedStream | UnmergedStream | None = None
        self._last: Taken | None = None
        self._failure: ShardstreamError | None = None
        self._events = self._late = self._possible_duplicates = 0
        self._first: StreamPosition | None = None  # where the first session began
        self._given: Taken | None = None  # the end of the last batch made of what was taken
        self._is_kept = False  # something is taken, and not yet in a batch
        self._unmarked: dict[str, ReadBeforeHop] = {}
        self.unmarked_hops = 0  # over reshards that were declared without marks
        self._reached: StreamPosition | None = None  # before what waits to be delivered
        self._for_records: bool | None = None  # None: nothing has been asked for yet
        self._look = TopologyLook(self._config, keyspace, TOPOLOGY_LOOK_S)
        self._closing = threading.Event()
        self._reading = threading.Lock()  # held by the user of the session

    def __iter__(self) -> Iterator[VEvent]:
        self._check_open()
        return self

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __next__(self) -> VEvent:
        if self._reporter is not None:
            self._note_handled(self._reporter)
        if not self._ready:
            self._refill(self._idle_timeout_s)
        if self._closing.is_set() or not self._ready:
            raise StopIteration
        event: VEvent = self._ready.popleft()
        self._last, self._reached = event, None
        return event

    def take(self, events_max: int, timeout_s: float) -> list[VEvent]:
        """Return up to `events_max` events: those that are ready, else what comes in time.

        For programs that have other work to do between events: an empty list after `timeout_s`
        seconds, independent of `idle_timeout_s`. Raises what iterating raises.
        """
        self._check_open()
        if self._reporter is not None:
            self._note_handled(self._reporter)
        if not self._ready:
            self._refill(timeout_s)
        taken = [self._ready.popleft() for _ in range(min(events_max, len(self._ready)))]
        if taken:
            self._last, self._reached = taken[-1], None
        return taken

    def take_records(self, timeout_s: float, *, is_handled: bool = True) -> list[Taken]:
        """Return what is ready, else what comes in time, for programs that want records of rows.

        Rows come in stretches, and of all tables; other records come as events. UsageError once
        events have been taken. `is_handled`: what earlier calls returned need not be read again.
        `position`, also under the reader's name, does not pass what is neither handled nor given.
        """
        self._check_open()
        if is_handled:
            self._given, self._is_kept = self._last, False
        if self._reporter is not None:
            self._note_handled(self._reporter)
        self._refill(timeout_s, is_handled=is_handled, for_records=True)
        taken: list[Taken] = list(self._ready)
        if taken:
            self._last, self._is_kept = taken[-1], True
        self._ready.clear()
        return taken

    def give(self, last: Taken, *, is_all: bool) -> None:
        """Note that what was taken up to `last` is delivered; `is_all`: nothing follows it."""
        self._given, self._is_kept, self._reached = last, not is_all, None

    @property
    def tables(self) -> frozenset[tuple[str, str]] | None:
        """The (database, table) pairs that were asked for; None for all."""
        return self._tables

    @property
    def read_us(self) -> Mapping[str, int] | None:
        """By shard, the time before which it has been read; None outside of mode Unmerged."""
        session = self._session
        return None if session is None else session.read_us

    def schema_text(self, schema_id: int) -> str:
        """Return the schema of an event's `record`, as JSON text."""
        return self._schema_ids.text_of(schema_id)

    def _check_open(self) -> None:
        """Raise ReaderClosed after `close`: an iteration that ends at once looks like no events."""
        if self._closing.is_set():
            raise ReaderClosed(
                f"the subscriber of keyspace {self.keyspace} was closed: create a new one; its "
                f"position is where to start"
            )

    @property
    def waiting(self) -> Wait | None:
        """The shards that hold the stream back; None while events come, and before the first."""
        session = self._session
        return None if session is None else session.waiting

    @property
    def reports(self) -> ReaderReports | None:
        """How many reports of the position under `name` reached Kafka; None without a name."""
        return None if self._reporter is None else self._reporter.reports

    @property
    def stats(self) -> ReaderStats:
        """How many events have been read, how many with a mark, and over how many reshards."""
        position, first = self.position, self._first
        hops = 0 if position is None or first is None else position.epoch - first.epoch
        return ReaderStats(self._events, self._late, self._possible_duplicates, hops)

    @property
    def position(self) -> StreamPosition | None:
        """The position after all delivered events; None before the start is known."""
        session = self._session
        if self._is_kept or self._ready:
            last = self._given if self._is_kept else self._last
            return self._reached or (self._first if last is None else last.position)
        if session is not None:
            return session.position
        return self._start if isinstance(self._start, StreamPosition) else None

    def compare(self, a: EventToken, b: EventToken) -> Order:
        """Return the relation of a to b, as `compare` does, with the uncertainty of `clock`."""
        return compare(a, b, self.clock)

    def _note_handled(self, reporter: ReaderReporter) -> None:
        """Note the last event delivered: who asks for more has handled it."""
        if self._reached is not None:
            return  # noted when it was reached
        last = self._given if self._is_kept else self._last
        if (self._is_kept or self._ready) and last is not None and last.place is not None:
            places, count = last.place
            reporter.note(partial(places.position_after, count))

    def _refill(
        self, timeout_s: float | None, *, is_handled: bool = True, for_records: bool = False
    ) -> None:
        if self._for_records is not for_records:
            if self._for_records is not None:
                raise UsageError(
                    f"the subscriber of keyspace {self.keyspace} was read both as events and in "
                    f"batches, so that each would lack some: create one for each"
                )
            self._for_records = for_records
        with self._reading:
            if not self._ready and not self._is_kept:
                self._reached = self.position
            try:
                self._read(timeout_s, is_handled=is_handled)
            finally:
                if self._closing.is_set():
                    self._end()

    def _read(self, timeout_s: float | None, *, is_handled: bool) -> None:
        """Make at least one event ready, unless closed or idle for too long."""
        idle_since_s = time.monotonic()
        begun: Place | None = None
        while not self._ready and not self._closing.is_set():
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            try:
                if self._session is None:
                    self._session = self._open()
                    idle_since_s = time.monotonic()
                begun = self._session.place
                if self._reporter is not None and is_handled:
                    self._reporter.note(begun.position)
                self._session.read(
                    self._ready, POLL_S if timeout_s is None else min(POLL_S, timeout_s)
                )
                self._count()
                self._follow_declared(self._session)
            except ShardstreamError as error:
                self._spent(error)
                continue
            except BaseException:
                self._cut_off(begun)
                raise
            if timeout_s is not None and time.monotonic() - idle_since_s >= timeout_s:
                return

    def _count(self) -> None:
        """Count the events made ready; only some streams have any that could be marked."""
        if not self._ready:
            return
        stretches = [each for each in self._ready if isinstance(each, TakenRows)]
        self._events += len(self._ready) + sum([each.rows - 1 for each in stretches])
        events = [] if stretches else self._ready  # no row of a stretch is marked
        if isinstance(self._mode, MaxHold):
            self._late += sum(event.late for event in events)
        if self._unmarked:
            self._possible_duplicates += sum(event.possible_duplicate for event in events)

    def _spent(self, error: ShardstreamError) -> None:
        """End the session: its ready events come first, then the error, then a new session."""
        self._failure = error
        self._leave()

    def _cut_off(self, begun: Place | None) -> None:
        """End a session that an interrupt may have made lose what it had fetched.

        The next read begins where this one did.
        """
        session, self._session = self._session, None
        self._ready.clear()
        if begun is not None:
            self._start = begun.position()
        if session is not None:
            session.close()

    def _open(self) -> MergedStream | UnmergedStream:
        topology = known_topology(self._config, self.keyspace)
        schema_ids = self._schema_ids
        start = resolve_start(
            self._start,
            config=self._config,
            topology=topology,
            key_range=self.key_range,
            schema_ids=schema_ids,
            tables=self._tables,
            clock=self.clock,
            at_end_if_behind=isinstance(self._mode, Unmerged),
        )
        self._first = self._first or start
        self._unmarked = unmarked_targets(topology) | self._unmarked
        parts = StreamParts(
            start=start,
            feed=ProgressFeed(self._config, self.keyspace, schema_ids),
            config=self._config,
            keyspace=self.keyspace,
            decoder=EventDecoder(schema_ids),
            delivery=Delivery(
                self.key_range,
                self._tables,
                start,
                self._unmarked,
                rows_into=self._ready if self._for_records else None,
                marks_late=not isinstance(self._mode, Unmerged),
            ),
            run_rows_max=RECORD_RUN_ROWS_MAX if self._for_records else RUN_ROWS_MAX,
            poll_s=POLL_S,
        )
        retired = retired_us(topology)
        if isinstance(self._mode, Unmerged):
            planner = UnmergedPlanner(start, self.key_range, retired_us=retired)
            return UnmergedStream(parts, planner)
        return MergedStream(parts, Planner(start, self.key_range, self._mode, retired_us=retired))

    def _follow_declared(self, session: MergedStream | UnmergedStream) -> None:
        """While the stream waits, look for a reshard declared without marks, and hop.

        At the live edge it waits for moments only, which must not become longer by this.
        """
        if session.waiting is None:
            return
        try:
            topology = self._look.take()
            hop = topology and unmarked_hop(
                session.position,
                config=self._config,
                topology=topology,
                key_range=self.key_range,
                schema_ids=open_schema_ids(self._config, self._registry_url),
                is_exact=isinstance(self._mode, Strict),
                read_us=session.read_us,
                clock=self.clock,
            )
        except Retry:
            # Brokers are down, which may be why the stream waits: its consumers raise an error if
            # that lasts too long. Nothing has changed, so the next check will do.
            return
        if hop:
            self.unmarked_hops += 1
            self._leave()
            self._start, seen = hop
            self._unmarked |= seen

    def _leave(self) -> None:
        """Close the session; the next one, or who asks for the position, goes on behind it."""
        session, self._session = self._session, None
        if session is not None:
            self._start = session.position
            session.close()

    def _end(self) -> None:
        self._leave()
        if self._reporter is not None:
            self._reporter.close()

    def close(self) -> None:
        """End the iteration and close all consumers; from any thread, idempotent."""
        self._closing.set()
        session = self._session
        if session is not None:
            session.stop()
        if self._reading.acquire(timeout=CLOSE_WAIT_S):
            try:
                self._end()
            finally:
                self._reading.release()
