"""The readers behind the streams of a server, each in a thread.

Clients at the live edge that read the same key range in the same order share one reader, which
decodes each row once. A client that is further back has a reader of its own until it has caught up.
Then it joins: the shared reader keeps what it read last, and hands over what the client lacks.
"""

import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Self, TypeVar

from event_token import StreamPosition
from event_token.errors import Halt, Rebuild, Retry, ShardstreamError, UsageError
from shardstream.settings.model import Settings
from shardstream.streams.encoding import Encoding, Reached
from shardstream.streams.outbox import CLIENT_BYTES_MAX, PACE_S, Outbox
from shardstream.streams.request import RequestRefused, RowChoice, StreamFormat, StreamRequest
from shardstream.subscriber import Subscriber
from topics.errors import LogShrank, PositionTooOld, WrongPosition
from topics.kafka.lookups import Lookups
from topics.keyspace.topology import Topology, require_topology
from topics.progress.history import ProgressHistory
from topics.progress.record import Progress, cell_start_us
from topics.reading.followed_shards import Wait
from topics.reading.planner import MaxHold, Unmerged
from topics.records.vevent import VEvent
from topics.start.positions import check_not_ahead, find_topology, known_topology, resolve_start
from topics.start.start_forms import ParsedStart, StartWord
from topics.stream.subscriber import ReadingMode, Table

# Of one client each: a reader has a thread, and per shard a consumer that may prefetch 8 MB. These
# are of clients that catch up, and become free within seconds or minutes.
READERS_MAX: Final = 32
# These are of clients that share none as long as they are there: with a name, or of Arrow batches.
# Their places are apart, or 32 of them would keep all other clients out.
DEDICATED_MAX: Final = 32
# Of many clients: one per keyspace, key range and order. Beyond these, clients keep their own.
SHARED_MAX: Final = 16
# How long a client waits for a reader before it is told to come back: most catch up in seconds.
READER_WAIT_S: Final = 5.0
# Events taken, encoded and handed over at a time: as many as a Subscriber makes ready.
EVENTS_MAX: Final = 256
# How soon a reader, or who waits for one, notices that its client is gone.
POLL_S: Final = 0.1
# So long after its logs were opened a stream without an error begins where neither an event nor the
# frontier has shown that its start can be read: an idle shard without heartbeats shows nothing.
FIRST_S: Final = 3.0
# Opening takes tenths of a second; brokers that do not answer are given up after two minutes.
OPEN_S_MAX: Final = 180.0
# A start at the current time waits for the next heartbeats; who asks for a later one comes back.
START_WAIT_S: Final = 5.0
# Before a fault that passes is tried again; the brokers' own timeouts are longer.
RETRY_PAUSE_S: Final = 1.0
# What a shared reader keeps for clients that join: some seconds of a busy keyspace. A client
# that comes back after a lost connection seldom needs more.
KEPT_EVENTS_MAX: Final = 4_096
KEPT_BYTES_MAX: Final = 16 * 1024 * 1024
# A client that is ahead of the shared reader waits for it so long, once: heartbeats come every
# 250 ms, and nothing is read for the client meanwhile.
JOIN_S: Final = 1.0
# How old a look at the logs' ends may be that shows a reader to be there. A shared reader that
# begins further back than this keeps all that come later out.
LOOK_S: Final = 2.0
# A client that has waited for the targets of a reshard so long has read all that there is: it is
# stuck, and may share a reader. Reading their progress takes seconds on a busy machine.
HOP_S_MAX: Final = 30.0
# So often what a client lacks of the kept events is written before it joins, without holding up the
# others; each time it should be less. If it lacks a batch even then, it keeps its own reader.
JOIN_TURNS_MAX: Final = 4
# Clients that come back after a restart or an outage do so within this; where one began that came
# earlier, retention may have passed.
BEGUN_S_MAX: Final = 60.0
# A shared reader outlives its last client by this: browsers come back within seconds.
SHARED_IDLE_S: Final = 15.0
# A reader that ends closes its consumers, which takes at most this long.
END_S_MAX: Final = 10.0

_log: Final = logging.getLogger("shardstream.streams")

T = TypeVar("T")


def ended_by(error: Exception) -> ShardstreamError:
    """Return the error that ends a stream; what nobody foresaw must not look like its end."""
    if isinstance(error, ShardstreamError):
        return error
    _log.error("a stream has failed", exc_info=error)
    return Halt(f"a fault of shardstream, please report it: {type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class SharedKey:
    """What clients of one reader have in common."""

    keyspace: str
    key_range: str
    mode: ReadingMode

    @classmethod
    def of(cls, request: StreamRequest) -> Self:
        """Return what a request needs of a reader that it shares."""
        return cls(request.keyspace, str(request.key_range), request.mode)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a client gets of a reader's events, and how it is written."""

    tables: frozenset[Table] | None
    rows: RowChoice
    encoding: Encoding

    @classmethod
    def of(cls, request: StreamRequest) -> Self:
        """Return what a request asks for."""
        encoding = Encoding(request.format, request.has_every_id)
        return cls(request.tables, request.rows, encoding)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The first `count` events, as a client gets them, and why the next one cannot be written."""

    chunks: list[bytes]
    count: int
    error: ShardstreamError | None = None


class EventWriter:
    """Writes what clients want of events; not to be used by two threads at a time."""

    def __init__(self, wanted: Wanted) -> None:
        self._tables = wanted.tables
        self._filter = None if wanted.rows == RowChoice() else wanted.rows.filter()
        self._encoding = wanted.encoding

    def encoded(self, events: Sequence[VEvent], read: StreamPosition | None = None) -> Encoded:
        """Return the events of these tables and rows, and those without a table, such as DDL.

        `read`: as of `Encoding.events`. An event that cannot be written ends what is returned.
        """
        try:
            return Encoded(self._chunks(events, read), len(events))
        except Exception:
            for count in range(len(events)):
                try:
                    self._chunks(events[count : count + 1], read)
                except Exception as found:  # noqa: BLE001 - the client gets it
                    return Encoded(self._chunks(events[:count], read), count, ended_by(found))
            raise

    def _chunks(self, events: Sequence[VEvent], read: StreamPosition | None) -> list[bytes]:
        """RequestRefused where a table has no such column, Halt where a row cannot be decoded."""
        tables = self._tables
        if tables is not None:
            events = [e for e in events if not e.table or (e.database, e.table) in tables]
        if self._filter is not None:
            try:
                events = list(filter(None, map(self._filter.apply, events)))
            except UsageError as error:
                raise RequestRefused(400, str(error)) from error
        return self._encoding.events(events, read)


class SharingClients:
    """The clients of a shared reader that want the same."""

    def __init__(self, wanted: Wanted) -> None:
        self.writer = EventWriter(wanted)
        self.outboxes: list[Outbox] = []

    def put(self, taken: Sequence[VEvent], reached: Reached | None, deadline_s: float) -> bool:
        """Hand over what was taken; False if nobody is left.

        An error of these rows ends these clients alone, behind the rows before it. `deadline_s`:
        until when clients without room are waited for, as of `time.monotonic`.
        """
        written = self.writer.encoded(taken)
        if written.error is not None:
            taken = taken[: written.count]
            reached = _behind(taken) if taken else None
        if reached is not None:
            self.outboxes = [
                outbox
                for outbox in self.outboxes
                if outbox.put(written.chunks, reached, max(0.0, deadline_s - time.monotonic()))
            ]
        if written.error is not None:
            _log.warning("streams have ended: %s", written.error)
            self.finish(written.error)
            return False
        return bool(self.outboxes)

    def finish(self, error: ShardstreamError | None) -> None:
        """End the streams of these clients."""
        for outbox in self.outboxes:
            outbox.finish(error)


class StreamReaders:
    """All readers of a server. A context manager: they end with it."""

    def __init__(self, settings: Settings) -> None:
        """Nothing is read before a client comes."""
        self._settings = settings
        self._config = settings.kafka_client()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(READERS_MAX)
        self._free_dedicated = threading.BoundedSemaphore(DEDICATED_MAX)
        self._shared: dict[SharedKey, SharedReader] = {}
        self._threads: set[threading.Thread] = set()
        # With the reader that each shares or is to share, and since when; None before its position
        # was read from.
        self._outboxes: dict[Outbox, tuple[SharedKey | None, float]] = {}
        self._messages_before = 0  # of clients that are gone
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ended.set()
        with self._lock:
            outboxes, threads = list(self._outboxes), list(self._threads)
        for outbox in outboxes:
            outbox.finish()
            outbox.close()
        deadline = time.monotonic() + END_S_MAX
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def streams(self) -> int:
        """How many clients there are."""
        with self._lock:
            return len(self._outboxes)

    @property
    def messages(self) -> int:
        """How many events, or Arrow IPC streams, clients have been given."""
        with self._lock:
            return self._messages_before + sum(each.messages for each in self._outboxes)

    @property
    def readers(self) -> int:
        """How many readers there are."""
        with self._lock:
            return len(self._threads)

    @property
    def shared(self) -> int:
        """How many of them are shared."""
        with self._lock:
            return len(self._shared)

    def forget(self, outbox: Outbox) -> None:
        """Note that a client is gone."""
        outbox.close()
        with self._lock:
            if outbox in self._outboxes:
                del self._outboxes[outbox]
                self._messages_before += outbox.messages

    def register(self, request: StreamRequest, loop: AbstractEventLoop) -> Outbox:
        """Return the outbox of a new client, which `open` and `forget` follow."""
        # A named reader reports what it has handed over, so that is little.
        outbox = Outbox(loop, CLIENT_BYTES_MAX if request.name is None else 0)
        with self._lock:
            if self.ended.is_set():
                raise _ending()
            self._outboxes[outbox] = None, 0.0
        return outbox

    def open(self, request: StreamRequest, outbox: Outbox) -> None:
        """Begin a stream; it blocks for the time that this takes, or until the outbox is closed.

        A stream that cannot be read until an operator has acted begins, and ends with its error.
        RequestRefused: 400, 404, 409 and 410 as of the start, 429 without a free reader, 503 where
        the brokers do not answer or a shard has not reached the start.
        """
        try:
            self.check_wanted(outbox)
            outbox.begin_at(self._resolved(request))
            self._begin(request, outbox)
        except RequestRefused:
            raise
        except (Retry, Rebuild, PositionTooOld, LogShrank, WrongPosition) as refused:
            raise self._refused(request, refused) from refused
        except Exception as found:  # noqa: BLE001 - its client gets it
            error = ended_by(found)
            _log.warning("%s: a stream has ended: %s", request.keyspace, error)
            outbox.finish(error)

    def check_wanted(self, outbox: Outbox) -> None:
        """Raise RequestRefused when the client is gone, or the server ends."""
        if self.ended.is_set() or outbox.is_closed:
            raise _ending()

    def _resolved(self, request: StreamRequest) -> StreamPosition:
        start = request.start
        if isinstance(start, StreamPosition):
            check_not_ahead(start, time.time_ns() // 1_000)  # a shared reader asks nobody
            return start
        found = find_topology(self._config, request.keyspace)
        try:
            topology = require_topology(found, request.keyspace)
        except UsageError as error:
            raise RequestRefused(404, str(error)) from error
        try:
            return self._resolve(request, start, topology)
        except UsageError as error:
            if start is not StartWord.COPY:
                raise
            raise RequestRefused(400, str(error)) from error  # no copy has been made

    def _resolve(
        self, request: StreamRequest, start: ParsedStart, topology: Topology
    ) -> StreamPosition:
        return resolve_start(
            start,
            config=self._config,
            topology=topology,
            key_range=request.key_range,
            schema_ids=self._settings.schema_ids(),
            tables=request.tables,
            clock=self._settings.clock_uncertainty(),
            wait_s=START_WAIT_S,
            at_end_if_behind=isinstance(request.mode, Unmerged),
            requests_copies=False,  # a GET changes nothing
        )

    def _begin(self, request: StreamRequest, outbox: Outbox) -> None:
        free = self._free_dedicated if request.has_own_reader else self._free
        deadline_s, wait_s = time.monotonic() + READER_WAIT_S, JOIN_S
        while not self._join(request, outbox, wait_s):
            wait_s = 0.0
            if free.acquire(timeout=POLL_S):
                reader = OwnReader(self, request, outbox)
                self._start(reader.run, free.release)
                reader.await_first()
                return
            self.check_wanted(outbox)
            if time.monotonic() > deadline_s:
                raise _no_reader(request)

    def _start(self, run: Callable[[], None], at_end: Callable[[], None]) -> None:
        def run_and_end() -> None:
            try:
                run()
            finally:
                with self._lock:
                    self._threads.discard(thread)
                at_end()

        thread = threading.Thread(target=run_and_end, name="stream-reader", daemon=True)
        with ExitStack() as unless_started, self._lock:
            unless_started.callback(at_end)
            if self.ended.is_set():
                raise _ending()
            thread.start()
            self._threads.add(thread)
            unless_started.pop_all()

    def _join(self, request: StreamRequest, outbox: Outbox, wait_s: float) -> bool:
        if request.has_own_reader:
            return False
        with self._lock:
            shared = self._shared.get(SharedKey.of(request))
        return shared is not None and shared.join(request, outbox, wait_s)

    def is_shared(self, key: SharedKey) -> bool:
        """Whether there is a shared reader of this key."""
        with self._lock:
            return key in self._shared

    @property
    def has_shared_place(self) -> bool:
        """Whether another shared reader may be made."""
        with self._lock:
            return len(self._shared) < SHARED_MAX

    def last_progress(self, keyspace: str, shards: Iterable[str]) -> dict[str, Progress | None]:
        """Return the last progress of these shards, as it is on Kafka now."""
        schema_ids = self._settings.schema_ids()
        histories = {shard: ProgressHistory(keyspace, shard, schema_ids) for shard in shards}
        with Lookups(self._config) as lookups:
            found = lookups.results({s: each.last_if_any() for s, each in histories.items()})
        return {shard: None if last is None else last.progress for shard, last in found.items()}

    def join_or_share(self, request: StreamRequest, outbox: Outbox, wait_s: float) -> bool:
        """Put a client that has caught up to the shared reader, which is made if there is none.

        False while it cannot join: it goes on with its own reader. `wait_s`: how long it waits for
        a shared reader that is behind it. A new one begins where the first of those that have
        caught up, or are about to, has begun, if that is near: after a restart or an outage many
        clients of such places come back at once.
        """
        key = SharedKey.of(request)
        with self._lock:
            is_new = key not in self._shared and len(self._shared) < SHARED_MAX
            if is_new:
                at = outbox.position
                since_s = time.monotonic() - BEGUN_S_MAX
                begins = [
                    each.begin
                    for each, (wants, begun_s) in self._outboxes.items()
                    if wants == key and begun_s > since_s
                ]
                begin = min([at, *(each for each in begins if _is_near(at, each))], key=_seqs)
                self._shared[key] = SharedReader(self, request, begin)
            shared = self._shared.get(key)
        if shared is None:
            return False
        if is_new:
            self._start(shared.run, partial(self.retire, shared))
        return shared.join(request, outbox, wait_s)

    def note_begun(self, request: StreamRequest, outbox: Outbox) -> None:
        """Note that a client's position can be read, and that it is going to share a reader."""
        with self._lock:
            if outbox in self._outboxes and not request.has_own_reader:
                self._outboxes[outbox] = SharedKey.of(request), time.monotonic()

    def retire(self, reader: "SharedReader") -> None:
        """Let no further client join a shared reader; the next one makes another."""
        with self._lock:
            self._shared = {key: each for key, each in self._shared.items() if each is not reader}

    @contextmanager
    def subscriber(
        self,
        key: SharedKey,
        start: StreamPosition,
        tables: frozenset[Table] | None = None,
        name: str | None = None,
        idle_timeout_s: float | None = None,
    ) -> Iterator[Subscriber]:
        """Return a subscriber, closed behind the block."""
        named = None
        if tables is not None:
            named = [f"{_quoted(database)}.{_quoted(table)}" for database, table in tables]
        with Subscriber(
            key.keyspace,
            key.key_range,
            start,
            config=self._config,
            registry_url=self._settings.kafka.schema_registry_url,
            mode=key.mode,
            idle_timeout_s=idle_timeout_s,
            tables=named,
            clock=self._settings.clock_uncertainty(),
            name=name,
        ) as events:
            yield events

    def _refused(self, request: StreamRequest, error: ShardstreamError) -> RequestRefused:
        """Return how an error at the beginning of a stream is answered."""
        if isinstance(error, PositionTooOld):
            return RequestRefused(410, str(error), earliest=self._earliest(request))
        if isinstance(error, LogShrank | WrongPosition):
            return RequestRefused(409, str(error))
        return RequestRefused(503, str(error), retry_s=round(READER_WAIT_S))

    def _earliest(self, request: StreamRequest) -> str | None:
        """Return the earliest position of a stream; None while that cannot be found out."""
        try:
            topology = known_topology(self._config, request.keyspace)
            return self._resolve(request, StartWord.EARLIEST, topology).to_string()
        except Exception as found:  # noqa: BLE001 - the error before this one ends the stream
            error = ended_by(found)
            _log.warning("%s: the earliest start is unknown: %s", request.keyspace, error)
            return None

    def gone(self, request: StreamRequest, error: ShardstreamError) -> ShardstreamError:
        """Return the error that ends a stream under way, with the earliest start if that helps."""
        if not isinstance(error, PositionTooOld):
            return error
        refused = self._refused(request, error)
        refused.__cause__ = error  # which a client reads
        return refused


def _ending() -> RequestRefused:
    sentence = "the client is gone, or the server ends: come back"
    return RequestRefused(503, sentence, retry_s=round(READER_WAIT_S))


def _no_reader(request: StreamRequest) -> RequestRefused:
    if request.has_own_reader:
        sentence = (
            f"{DEDICATED_MAX} clients with a name or of Arrow have a reader each: come back when "
            f"one of them has left, or ask another server"
        )
    else:
        sentence = f"{READERS_MAX} readers catch up already: come back when one of them has"
    return RequestRefused(429, sentence, retry_s=round(READER_WAIT_S))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class OwnReader:
    """Reads for one client. Run in a thread of its own."""

    def __init__(self, readers: StreamReaders, request: StreamRequest, outbox: Outbox) -> None:
        """Begin nothing yet."""
        self._readers = readers
        self._request = request
        self._outbox = outbox
        self._writer = EventWriter(Wanted.of(request))
        self._has_begun = threading.Event()
        self._refusal: ShardstreamError | None = None
        self._wait_s = POLL_S
        self._join_s = JOIN_S
        self._ends: dict[str, Progress | None] = {}  # of the logs, when they were looked at
        self._looked_s = 0.0
        self._hop_since_s: float | None = None  # the wait for shards that are not of the position
        self._first_due_s: float | None = None  # None until the logs are open

    def await_first(self) -> None:
        """Wait until the stream can be read; raise why it cannot."""
        deadline_s = time.monotonic() + OPEN_S_MAX
        while not self._has_begun.wait(POLL_S):
            self._readers.check_wanted(self._outbox)
            if time.monotonic() > deadline_s:
                raise Retry(
                    f"keyspace {self._request.keyspace}: its stream has not begun within "
                    f"{OPEN_S_MAX:g} s"
                )
        if self._refusal is not None:
            raise self._refusal

    def run(self) -> None:
        """Read until the client is gone, or has joined a shared reader."""
        try:
            has_joined = self._read()
        except Exception as found:  # noqa: BLE001 - its client gets it
            self._end(ended_by(found))
        else:
            if not has_joined:
                self._end(None)

    def _end(self, error: ShardstreamError | None) -> None:
        if not self._has_begun.is_set():
            self._refusal = error
        else:
            if error is not None:
                _log.warning("%s: a stream has ended: %s", self._request.keyspace, error)
                error = self._readers.gone(self._request, error)
            self._outbox.finish(error)
        self._has_begun.set()

    def _read(self) -> bool:
        request = self._request
        is_arrow = request.format is StreamFormat.ARROW
        with self._readers.subscriber(
            SharedKey.of(request),
            self._outbox.position,
            request.tables,
            request.name,
            idle_timeout_s=POLL_S if is_arrow else None,
        ) as events:
            put = self._batches_putter(events) if is_arrow else partial(self._put_events, events)
            while not self._outbox.is_closed:
                is_idle = put() and self._has_begun.is_set() and not request.has_own_reader
                waiting = events.waiting
                if is_idle and waiting is not None and self._joins(waiting):
                    return True
        return False

    def _joins(self, waiting: Wait) -> bool:
        """Join the shared reader, or begin it, as of `StreamReaders.join_or_share`."""
        request = self._request
        is_shared = self._readers.is_shared(SharedKey.of(request))
        if not is_shared and not (self._readers.has_shared_place and self._is_at_ends(waiting)):
            return False
        has_joined = self._readers.join_or_share(request, self._outbox, self._join_s)
        self._join_s = 0.0
        return has_joined

    def _is_at_ends(self, waiting: Wait) -> bool:
        """Whether the logs have been read to where they ended a moment ago."""
        at, now_s = self._outbox.position, time.monotonic()
        if at.shards.keys() >= set(waiting.shards):
            self._hop_since_s = None
        else:  # the targets' progress has to be read before anything can be said
            self._hop_since_s = self._hop_since_s or now_s
            if now_s - self._hop_since_s < HOP_S_MAX:
                return False
        held = None if isinstance(self._request.mode, Unmerged) else waiting.shards
        is_known = at.shards.keys() <= self._ends.keys()
        if is_known and not is_at_ends(at, self._ends, held):
            return False
        if not is_known or time.monotonic() > self._looked_s + LOOK_S:
            keyspace = self._request.keyspace
            found = self._patiently(partial(self._readers.last_progress, keyspace, at.shards))
            self._ends, self._looked_s = found or {}, time.monotonic()
            return found is not None and is_at_ends(at, found, held)
        return True

    def _patiently(self, take: Callable[[], T]) -> T | None:
        """Return what is taken; None for a fault that passes, once the stream has begun."""
        try:
            taken = take()
        except (Retry, Rebuild) as error:  # the subscriber makes what it reads with again
            if not self._has_begun.is_set():
                raise
            _log.warning("%s: a stream waits: %s", self._request.keyspace, error)
            self._readers.ended.wait(RETRY_PAUSE_S)
            return None
        return taken

    def _begin(self) -> None:
        if not self._has_begun.is_set():
            self._readers.note_begun(self._request, self._outbox)
            self._has_begun.set()

    def _put_events(self, events: Subscriber) -> bool:
        """Hand over what there is; return whether that was nothing.

        Behind events it does not wait: a busy stream has caught up when nothing is there at once.
        """
        taken = self._patiently(partial(events.take, EVENTS_MAX, self._wait_s))
        if taken is None:
            return False
        self._wait_s = 0 if taken else POLL_S
        for part in parts_of(taken):
            written = self._writer.encoded(part)
            error = written.error
            if isinstance(error, RequestRefused) and not self._has_begun.is_set():
                raise error  # a wrong column is a 400
            if written.count:
                self._begin()
                self._outbox.put(written.chunks, _behind(part[: written.count]))
            if error is not None:
                raise error
        self._put([], events)
        return not taken

    def _batches_putter(self, events: Subscriber) -> Callable[[], bool]:
        from shardstream.streams.arrow import arrow_streams  # noqa: PLC0415 - of an extra
        from topics.arrow.event_batches import BATCH_COLUMNS  # noqa: PLC0415

        columns = (*BATCH_COLUMNS, "late", "possible_duplicate")
        batches = events.batches(columns, bytes_max=CLIENT_BYTES_MAX)

        def put() -> bool:
            batch = self._patiently(partial(next, batches, None))
            if batch is None:
                self._put([], events)
            else:
                self._begin()
                self._outbox.put(arrow_streams(batch), Reached(batch.position, events.waiting))
            return batch is None

        return put

    def _put(self, chunks: Sequence[bytes], events: Subscriber) -> None:
        position = events.position or self._outbox.position
        has_moved = position.frontier_us > self._outbox.begin.frontier_us
        now_s = time.monotonic()
        if self._first_due_s is None:
            self._first_due_s = now_s + FIRST_S
        if has_moved or now_s > self._first_due_s:
            self._begin()
        self._outbox.put(chunks, Reached(position, events.waiting))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Events that a shared reader has taken together, and the position behind them."""

    events: Sequence[VEvent]
    size: int
    end: StreamPosition


class SharedReader:
    """Reads for all clients at the live edge that share a key. Run in a thread of its own."""

    def __init__(
        self, readers: StreamReaders, request: StreamRequest, position: StreamPosition
    ) -> None:
        """Begin at a position, for all that want the same as `request` of a reader."""
        self._readers = readers
        self._request = request
        self._changed = threading.Condition()
        self._base = position  # where `_kept` begins
        self._kept: deque[_Kept] = deque()
        self._events = self._size = 0
        self._end = position
        self._clients: dict[Wanted, SharingClients] = {}
        self._idle_since_s: float | None = None
        self._is_over = False
        self._has_hopped_unmarked = False

    def join(self, request: StreamRequest, outbox: Outbox, wait_s: float) -> bool:
        """Take over a client, with what it lacks; False if it is not near enough, or full.

        `wait_s`: how long a client is waited for that is ahead.
        """
        at, wanted = outbox.position, Wanted.of(request)
        # In an order other than the merged one the client may be further in some shards.
        writer = EventWriter(wanted)
        chunks: list[bytes] = []
        for _ in range(JOIN_TURNS_MAX):
            with self._changed:
                lacking = self._lacking(at, wait_s)
                if lacking is None:
                    return False
                if len(lacking) <= EVENTS_MAX:
                    written = writer.encoded(lacking, at)
                    chunks += written.chunks
                    return not written.error and self._take_over(outbox, wanted, chunks)
                end = self._end
            for begin in range(0, len(lacking), EVENTS_MAX):
                written = writer.encoded(lacking[begin : begin + EVENTS_MAX], at)
                chunks += written.chunks
                if written.error or not outbox.has_room(sum(map(len, chunks))):
                    return False  # its own reader comes to the error in time
            at = end
        return False

    def _lacking(self, at: StreamPosition, wait_s: float) -> list[VEvent] | None:
        """Return what follows a position; None if that is not kept, or it is not of these logs."""
        self._changed.wait_for(
            lambda: self._is_over or not _follows(at, self._base) or _follows(self._end, at), wait_s
        )
        is_shared = not (self._is_over or self._has_hopped_unmarked)
        if not is_shared or not _follows(at, self._base) or not _follows(self._end, at):
            return None
        if at.frontier_us < self._base.frontier_us:
            return None  # the client would be told of a time that it has not come to
        lacking: list[VEvent] = []
        for kept in self._kept:
            for event in kept.events:
                here = at.shards[event.shard]
                is_read = event.seq <= here.seq
                if is_read is not (event.offset < here.offset):
                    return None
                if not is_read:
                    lacking.append(event)
        # Each reader of this mode leaves silent shards out by itself: such rows are not late here.
        leaves_out = isinstance(self._request.mode, MaxHold)
        if leaves_out and any(e.timestamp_us < at.frontier_us and not e.late for e in lacking):
            return None
        return lacking

    def _take_over(self, outbox: Outbox, wanted: Wanted, chunks: Sequence[bytes]) -> bool:
        if not outbox.has_room(sum(map(len, chunks))):
            return False
        if outbox.put(chunks, Reached(self._end, None), wait_s=0.0):
            self._clients.setdefault(wanted, SharingClients(wanted)).outboxes.append(outbox)
        self._idle_since_s = None
        return True

    def run(self) -> None:
        """Read until there has been no client for SHARED_IDLE_S."""
        try:
            with self._readers.subscriber(SharedKey.of(self._request), self._end) as events:
                while self._is_wanted():
                    self._turn(events)
        except Exception as found:  # noqa: BLE001 - its clients get it
            error = ended_by(found)
            _log.warning("%s: a shared reader has ended: %s", self._request.keyspace, error)
            self._finish(self._readers.gone(self._request, error))
        else:
            self._finish(None)

    def _is_wanted(self) -> bool:
        with self._changed:
            self._is_over = self._readers.ended.is_set() or (
                self._idle_since_s is not None
                and time.monotonic() - self._idle_since_s > SHARED_IDLE_S
            )
            return not self._is_over

    def _finish(self, error: ShardstreamError | None) -> None:
        with self._changed:
            self._is_over = True
            for clients in self._clients.values():
                clients.finish(error)
            self._clients.clear()
            self._changed.notify_all()

    def _turn(self, events: Subscriber) -> None:
        try:
            taken = events.take(EVENTS_MAX, POLL_S)
        except (Retry, Rebuild) as error:
            _log.warning("%s: a shared reader waits: %s", self._request.keyspace, error)
            self._readers.ended.wait(RETRY_PAUSE_S)
            taken = []
        reached = Reached(events.position or self._end, events.waiting)
        *parts, last = [*parts_of(taken)] or [()]
        if events.unmarked_hops and not self._has_hopped_unmarked:
            # It leaves out what it has read before the hop itself, of which no position tells.
            self._readers.retire(self)
        with self._changed:
            self._has_hopped_unmarked = bool(events.unmarked_hops)
            for part in parts:
                self._keep(part, _behind(part).position)
                self._hand_over(part, _behind(part))
            self._keep(last, reached.position)
            self._hand_over(last, reached)
            self._changed.notify_all()

    def _keep(self, taken: Sequence[VEvent], end: StreamPosition) -> None:
        """Keep what was taken; behind a hop, nothing of the shards before it."""
        self._end = end
        if end.shards.keys() != self._base.shards.keys():
            self._kept.clear()
            self._events = self._size = 0
            self._base = end
            return
        if not taken:
            return
        kept = _Kept(taken, sum(len(event.record) for event in taken), end)
        self._kept.append(kept)
        self._events += len(taken)
        self._size += kept.size
        while self._events > KEPT_EVENTS_MAX or self._size > KEPT_BYTES_MAX:
            oldest = self._kept.popleft()
            self._base = oldest.end
            self._events -= len(oldest.events)
            self._size -= oldest.size

    def _hand_over(self, taken: Sequence[VEvent], reached: Reached) -> None:
        deadline_s = time.monotonic() + PACE_S
        for wanted, clients in list(self._clients.items()):
            if not clients.put(taken, reached, deadline_s):
                del self._clients[wanted]
        if not self._clients and self._idle_since_s is None:
            self._idle_since_s = time.monotonic()


def is_at_ends(
    at: StreamPosition, last: Mapping[str, Progress | None], held: Collection[str] | None
) -> bool:
    """Whether a position is where logs end that have this last progress.

    That a reader waits does not say so: far behind it waits for progress that is on its way.
    `held`: the shards that hold the merged order back, which alone are to be at their ends. None:
    each shard is read by itself, and waits behind rows of which the client gets none.
    """
    if held is None:
        ends = {shard: 0 if each is None else each.last_seq for shard, each in last.items()}
        return all(each.seq >= ends[shard] for shard, each in at.shards.items())
    heads = [last[shard] for shard in held if shard in at.shards]
    return all(each is None or cell_start_us(each.head_us) <= at.frontier_us for each in heads)


def parts_of(taken: Sequence[VEvent]) -> Iterator[Sequence[VEvent]]:
    """Yield events a few at a time, so that wide rows of a client do not wait all at once."""
    begin = size = 0
    for at, event in enumerate(taken):
        size += len(event.record)
        if size > CLIENT_BYTES_MAX // 2:
            yield taken[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(taken):
        yield taken[begin:]


def _behind(events: Sequence[VEvent]) -> Reached:
    """Where a reader is behind events of a stream."""
    position = events[-1].position
    if position is None:
        raise UsageError("an event of a stream has no position")
    return Reached(position, None)


def _follows(later: StreamPosition, earlier: StreamPosition) -> bool:
    """Whether a position has read, of the same shards, all that another one has."""
    return later.shards.keys() == earlier.shards.keys() and all(
        later.shards[shard].seq >= at.seq for shard, at in earlier.shards.items()
    )


def _is_near(later: StreamPosition, earlier: StreamPosition) -> bool:
    """Whether a shared reader can keep what lies between two positions."""
    return _follows(later, earlier) and _seqs(later) - _seqs(earlier) <= KEPT_EVENTS_MAX


def _seqs(position: StreamPosition) -> int:
    return sum(at.seq for at in position.shards.values())
