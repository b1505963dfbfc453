"""The merged stream of a keyspace as a plain Python iterator."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from event_token import ClockUncertainty, EventToken, Order, StreamPosition, compare
from event_token.errors import Retry, ShardstreamError, UsageError
from topics.errors import ReaderClosed
from topics.kafka.client import ClientConfig
from topics.keyspace.lineage import retired_us
from topics.keyspace.topology_look import TopologyLook
from topics.names import check_keyspace
from topics.readers.reporter import ReaderReporter, ReaderReports
from topics.reading.followed_shards import Wait
from topics.reading.planner import MaxHold, Planner, Strict
from topics.reading.seen_before import SeenBefore
from topics.reading.unmerged import Unmerged, UnmergedPlanner
from topics.records.record_decoder import RecordDecoder
from topics.records.vevent import VEvent
from topics.schemas.registry import open_schema_ids
from topics.start.known_keyspace import known_topology
from topics.start.positions import resolve_start
from topics.start.start_forms import ParsedStart, Start, parse_start
from topics.start.unmarked_hop import unmarked_hop, unmarked_targets
from topics.stream.arguments import (
    ReadingMode,
    checked_clock,
    checked_config,
    checked_key_range,
    checked_mode,
    checked_tables,
    checked_timeout_s,
)
from topics.stream.delivery import Delivery, UnmergedDelivery
from topics.stream.log_reader import ShardLogReader
from topics.stream.merged_stream import MergedStream
from topics.stream.places import Taken, TakenRows
from topics.stream.progress_feed import ProgressFeed
from topics.stream.unmerged_stream import UnmergedStream

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
        self._config = checked_config(config)
        self._registry_url = registry_url
        self._mode = checked_mode(mode)
        self._idle_timeout_s = checked_timeout_s(idle_timeout_s)
        self._tables = checked_tables(tables)
        self.clock = checked_clock(clock)
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
        self._unmarked: dict[str, SeenBefore] = {}
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
        self._last = event
        return event

    def take(self, events_max: int, timeout_s: float) -> list[VEvent]:
        """Return up to `events_max` events: those that are ready, else what comes in time.

        For programs that have other work to do between events: an empty list after `timeout_s`
        seconds, whatever `idle_timeout_s` is. Raises what iterating raises.
        """
        self._check_open()
        if self._reporter is not None:
            self._note_handled(self._reporter)
        if not self._ready:
            self._refill(timeout_s)
        taken = [self._ready.popleft() for _ in range(min(events_max, len(self._ready)))]
        self._last = taken[-1] if taken else self._last
        return taken

    def take_records(self, timeout_s: float, *, is_handled: bool = True) -> list[Taken]:
        """Return what is ready, else what comes in time, for programs that want records of rows.

        Rows come in stretches, and of all tables; what is no row comes as an event. UsageError once
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
        self._given, self._is_kept = last, not is_all

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
        if self._is_kept:
            return self._first if self._given is None else self._given.position
        if session is not None and not self._ready:
            return session.position
        if self._last is not None:
            return self._last.position
        if session is not None:
            return session.start
        return self._start if isinstance(self._start, StreamPosition) else None

    def compare(self, a: EventToken, b: EventToken) -> Order:
        """Return the relation of a to b, as `compare` does, with the uncertainty of `clock`."""
        return compare(a, b, self.clock)

    def _note_handled(self, reporter: ReaderReporter) -> None:
        """Note the last event delivered: who asks for more has handled it."""
        last = self._given if self._is_kept else self._last
        if (self._is_kept or self._ready) and last is not None and last.position_source is not None:
            reporter.note(last.position_source)

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
            try:
                self._read(timeout_s, is_handled=is_handled)
            finally:
                if self._closing.is_set():
                    self._end()

    def _read(self, timeout_s: float | None, *, is_handled: bool) -> None:
        """Make at least one event ready, unless closed or idle for too long."""
        idle_since_s = time.monotonic()
        while not self._ready and not self._closing.is_set():
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            try:
                if self._session is None:
                    self._session = self._open()
                    idle_since_s = time.monotonic()
                if self._reporter is not None and is_handled:
                    self._reporter.note(self._session.place.position)
                self._session.read(
                    self._ready, POLL_S if timeout_s is None else min(POLL_S, timeout_s)
                )
                self._count()
                self._follow_declared(self._session)
            except ShardstreamError as error:
                self._spent(error)
                continue
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
        if self._session is not None:
            self._start = self._session.position
        self._failure = error
        self._leave()

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
        feed = ProgressFeed(self._config, self.keyspace, schema_ids)
        decoder, retired = RecordDecoder(schema_ids), retired_us(topology)
        rows_into = self._ready if self._for_records else None
        rows_max = RECORD_RUN_ROWS_MAX if self._for_records else RUN_ROWS_MAX
        if isinstance(self._mode, Unmerged):
            return UnmergedStream(
                start,
                run_rows_max=rows_max,
                poll_s=POLL_S,
                planner=UnmergedPlanner(start, self.key_range, retired_us=retired),
                feed=feed,
                open_reader=self._reader,
                decoder=decoder,
                delivery=UnmergedDelivery(
                    self.key_range, self._tables, start, self._unmarked, rows_into=rows_into
                ),
                for_records=bool(self._for_records),
            )
        return MergedStream(
            start,
            run_rows_max=rows_max,
            poll_s=POLL_S,
            planner=Planner(start, self.key_range, self._mode, retired_us=retired),
            feed=feed,
            open_reader=self._reader,
            decoder=decoder,
            delivery=Delivery(
                self.key_range, self._tables, start, self._unmarked, rows_into=rows_into
            ),
            for_records=bool(self._for_records),
        )

    def _reader(self, shard: str) -> ShardLogReader:
        return ShardLogReader(self._config, self.keyspace, shard)

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
            self._start, seen = hop
            self._unmarked |= seen
            self._leave()

    def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
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
