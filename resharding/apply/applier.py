"""Filtered replication: applies to a target those rows of the sources that belong to it.

The checkpoint is on the target and moves in the same transaction as the rows, so a killed applier
resumes exactly after its last commit. Nothing else stores how far it is. Of a backlog, many
transactions of the sources are one of the target, in which only the last change of a row is left.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from databases.errors import LoginRefused
from databases.server import OUTAGE_S
from event_token import KeyRange, ShardName, StreamPosition
from event_token.errors import Rebuild, Retry, UsageError
from resharding.apply.last_changes import LastChanges, Section
from resharding.apply.merge_session import MergeSession
from resharding.apply.statements import (
    STATEMENT_ROWS_MAX,
    ReshardTargetTable,
    StatementBuilder,
    TargetStatement,
)
from resharding.apply.target_session import TargetSession
from resharding.bookkeeping import (
    Checkpoint,
    ReshardPlan,
    merged_position,
    move_statement,
    range_of,
    void_verified_statement,
)
from resharding.errors import CheckpointMoved, DefinitionChanged, DoesNotApply, TransactionSkipped
from resharding.progress import applier_lock
from resharding.routing import Routes, check_skip
from resharding.servers import ReshardServer
from topics.kafka.client import ClientConfig
from topics.named_readers import ReaderReporter
from topics.names import ApplierName
from topics.progress.record import Progress
from topics.reading.planner import Planner
from topics.records.event_decoder import EventDecoder
from topics.records.skip_record import is_accepted
from topics.records.vevent import EventType, VEvent
from topics.schemas import open_schema_ids
from topics.stream.delivery import Delivery
from topics.stream.merged_stream import MergedStream, StreamParts
from topics.stream.progress_feed import ProgressFeed

# A status line is for people.
TELL_INTERVAL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApplierStatus:
    """How far a target's applier is.

    `seqs`: per source. `behind_ms`: age of the merged frontier by this host's clock. `skips`: the
    accepted ones that it has passed since it started. `aside`: rows that wait aside in a merge.
    """

    target: str
    seqs: dict[str, int]
    rows_total: int
    rows_per_s: float
    behind_ms: int
    note: str = ""
    skips: int = 0
    aside: int = 0


class ApplierReports:
    """Counts what was applied, and reports it once per interval; to Kafka by `reporter`."""

    def __init__(
        self, target: str, on_status: Callable[[ApplierStatus], None], reporter: ReaderReporter
    ) -> None:
        self.reporter = reporter
        self.rows_total = 0
        self.skips = 0
        self.aside = 0
        self._target = target
        self._on_status = on_status
        self._last_s = time.monotonic()
        self._last_rows = 0
        self._seqs: dict[str, int] = {}
        self._frontier_us = 0

    def applied(self, rows: int, position: StreamPosition) -> None:
        """Take in a transaction that the target has committed."""
        self.rows_total += rows
        self._seqs = {shard: at.seq for shard, at in position.shards.items()}
        self._frontier_us = position.frontier_us
        self.reporter.note(lambda: position)
        if time.monotonic() - self._last_s >= TELL_INTERVAL_S:
            self.note("")

    def note(self, text: str) -> None:
        """Report now, with a remark or none."""
        now_s = time.monotonic()
        rate = (self.rows_total - self._last_rows) / max(now_s - self._last_s, 0.001)
        self._last_s, self._last_rows = now_s, self.rows_total
        behind_ms = max(0, time.time_ns() // 1_000 - self._frontier_us) // 1_000
        self._on_status(
            ApplierStatus(
                *(self._target, self._seqs, self.rows_total, rate, behind_ms, text, self.skips),
                self.aside,
            )
        )


# Events delivered at once, hence the size of a target transaction under load: a commit costs about
# as much as 100 rows.
RUN_ROWS_MAX: Final = 1_000
# Longest wait of one read, so that the applier can stop.
POLL_S: Final = 0.05


class _UnmarkedPlanner(Planner):
    """Plans past marks: an applier has to bring its target up to END itself, and never hops."""

    def observe(self, shard: str, progress: Progress, seen_at_ms: int) -> None:
        """Take in a progress record without its mark."""
        super().observe(shard, replace(progress, mark=None), seen_at_ms)


def source_stream(
    start: StreamPosition, *, config: ClientConfig, registry_url: str | None, keyspace: str
) -> MergedStream:
    """Events of the sources in merged order, from a position that names the shards.

    No network access before the first `read`. Raises what a subscriber raises: Halts of the reading
    core, Retry while brokers are unavailable.
    """
    whole = range_of(start.shards)
    schema_ids = open_schema_ids(config, registry_url)
    parts = StreamParts(
        start=start,
        feed=ProgressFeed(config, keyspace, schema_ids),
        config=config,
        keyspace=keyspace,
        decoder=EventDecoder(schema_ids, with_images=True),
        delivery=Delivery(whole, None, start),
        run_rows_max=RUN_ROWS_MAX,
        poll_s=POLL_S,
    )
    return MergedStream(parts, _UnmarkedPlanner(start, whole))


# Lots that wait while another is sent: with more, memory would hold more of them for nothing.
LOTS_MAX: Final = 1


@dataclass(frozen=True, slots=True)
class Lot:
    """Statements of a target transaction; `position` of the sources where it ends with them.

    `rows`: changes of the sources in the whole transaction.
    """

    statements: Sequence[TargetStatement]
    position: StreamPosition | None = None
    rows: int = 0


class Sender:
    """Sends lots in their order, in a thread beside the decoding of the next ones.

    After an error nothing more is sent: `send` and `drain` raise it. Others may use the
    session after `drain`, until they send again.
    """

    def __init__(self, target: TargetSession) -> None:
        """Start the thread."""
        self.has_committed = False
        self._target = target
        self._lots: queue.Queue[Lot | None] = queue.Queue(LOTS_MAX)
        self._committed: queue.SimpleQueue[Lot] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sender", daemon=True)
        self._thread.start()

    def send(self, lot: Lot) -> None:
        """Hand over a lot; wait while another waits."""
        self.check()
        self._lots.put(lot)

    def drain(self) -> None:
        """Wait until everything is sent and answered."""
        self._lots.join()
        self.check()

    @property
    def is_idle(self) -> bool:
        """Whether everything is sent and answered, without an error."""
        return self._lots.unfinished_tasks == 0 and self._error is None

    def check(self) -> None:
        """Raise the error that has ended the sending."""
        if self._error is not None:
            raise self._error

    def committed(self) -> list[Lot]:
        """The lots that ended a transaction and were committed since the last call."""
        return [self._committed.get() for _ in range(self._committed.qsize())]

    def close(self) -> None:
        """End the thread after what it has been given: it may be in the midst of a commit."""
        self._lots.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (lot := self._lots.get()) is not None:
            try:
                if self._error is None:
                    self._send(lot)
            except BaseException as error:  # noqa: BLE001 - raised in the thread that sends
                self._error = error
            finally:
                self._lots.task_done()

    def _send(self, lot: Lot) -> None:
        self._target.run(lot.statements)
        if lot.position is None:
            return
        self._target.settle(lot.position)
        self._target.check_primary()
        self._target.commit()
        self.has_committed = True
        self._committed.put(lot)


# A target transaction ends with the source transaction that reaches one of these, and a larger
# source transaction is sent in parts, so that one of any size fits in memory.
COMMIT_ROWS: Final = 10_000
COMMIT_BYTES: Final = 4 * 1024 * 1024
# Of which most may belong to other targets.
COMMIT_RECORDS: Final = 50_000
# Locks are not held for longer, and observers see how far it is.
COMMIT_S: Final = 1.0
AWAY_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApplierSettings:
    """One target's applier.

    `target`: its primary at the start; `find_target` looks for it again after a fault.
    `accepted_ddl`: GTIDs of DDL that the targets already match; `accepted_skips`: of skipped
    transactions despite which targets and sources agree. `outage_s`: how long the target or the
    brokers may be away.
    """

    plan: ReshardPlan
    target: ReshardServer
    kafka: ClientConfig
    registry_url: str | None = None
    accepted_ddl: frozenset[str] = frozenset()
    accepted_skips: frozenset[str] = frozenset()
    find_target: Callable[[], ReshardServer] | None = None
    outage_s: float = OUTAGE_S

    def present_target(self) -> ReshardServer:
        """The target's primary by now. Retry while there is none."""
        if self.find_target is None:
            return self.target
        try:
            return self.find_target()
        except UsageError as error:  # none of its servers takes writes, or several do
            raise Retry(str(error)) from error


def run_applier(
    settings: ApplierSettings,
    stop: threading.Event,
    on_status: Callable[[ApplierStatus], None] = lambda _status: None,
) -> None:
    """Apply until `stop` is set, retrying transient faults for `outage_s` without progress.

    Raises Halts of the reading core, DoesNotApply, DefinitionChanged, TransactionSkipped,
    CheckpointMoved,
    ServerRefused; the last Retry or Rebuild when a server or Kafka was away for too long.
    """
    plan, target = settings.plan, settings.target.shard
    name = ApplierName(plan.reshard_id, target)
    key_range = ShardName.parse(target).key_range
    # Not closed: an end waits for no last report. Nobody hears from it again, which says enough.
    reporter = ReaderReporter(settings.kafka, plan.keyspace, name, key_range)
    _apply(settings, stop, ApplierReports(target, on_status, reporter))


def _apply(settings: ApplierSettings, stop: threading.Event, reports: ApplierReports) -> None:
    careful = False
    has_moved = False
    has_connected = False
    away_since_s: float | None = None
    while not stop.is_set():
        rows_before = reports.rows_total
        session = _Session(settings, reports, careful=careful)
        try:
            session.run(stop, looks_again=away_since_s is not None)
        except DoesNotApply:
            # Retry with one row per statement: then the error names the very row.
            if careful:
                raise
            careful = True
        except CheckpointMoved as moved:
            # A COMMIT of an applier that was killed, or of our last session, may have ended only
            # after this one had read the checkpoint. Another applier that runs moves it again.
            if session.has_committed or has_moved:
                raise
            has_moved = True
            reports.note(f"{moved}; reading it again, as that one may have ended")
        except (Retry, Rebuild, LoginRefused) as error:
            # A password that has worked was changed; at the start it is a wrong one.
            has_connected |= session.is_connected
            if isinstance(error, LoginRefused) and not has_connected:
                raise
            if session.is_sound or reports.rows_total > rows_before or away_since_s is None:
                away_since_s = time.monotonic()
            if time.monotonic() - away_since_s > settings.outage_s:
                raise
            reports.note(f"{error}; retrying")
            stop.wait(AWAY_PAUSE_S)
        finally:
            session.close()
            has_moved = has_moved and not session.has_committed


class _Session:
    """One attempt of an applier, starting at the target's checkpoint."""

    def __init__(
        self, settings: ApplierSettings, reports: ApplierReports, *, careful: bool
    ) -> None:
        self._settings = settings
        self._plan = settings.plan
        self._reports = reports
        self._careful = careful
        self._routes = Routes(settings.plan.tables)
        self._key_range: KeyRange = ShardName.parse(settings.target.shard).key_range
        self._target: TargetSession | None = None
        self._sender: Sender | None = None
        self._stream: MergedStream | None = None
        self._is_merge = len(settings.plan.sources) > 1
        self._changes = LastChanges(self._sharding_column, is_merge=self._is_merge)
        self._settled: dict[str, int] = {}  # seq of the checkpoints, per source
        self._seqs: dict[str, int] = {}  # the same after what was sent of the open transaction
        self._last: VEvent | None = None  # the last record that was taken and not settled
        self._records = self._rows = self._part_rows = 0  # of the open transaction, and unsent
        self._began_s = 0.0
        # The target had all that there was to read, and the stream has moved, with rows or without:
        # both answer.
        self.is_sound = False

    @property
    def is_connected(self) -> bool:
        """Whether the session has reached its target."""
        return self._target is not None

    @property
    def has_committed(self) -> bool:
        """Whether the target has a transaction of this session."""
        return self._sender is not None and self._sender.has_committed

    def run(self, stop: threading.Event, *, looks_again: bool) -> None:
        settings = self._settings
        server = settings.present_target() if looks_again else settings.target
        reshard_id = self._plan.reshard_id
        target = MergeSession(server, reshard_id) if self._is_merge else TargetSession(server)
        self._target = target
        position = self._resume(target)
        sender = self._sender = Sender(target)
        self._builder = StatementBuilder(
            self._table,
            rows_max=1 if self._careful else STATEMENT_ROWS_MAX,
            packet_bytes_max=target.packet_bytes_max,
            is_merge=self._is_merge,
        )
        stream = self._stream = source_stream(
            position,
            config=self._settings.kafka,
            registry_url=self._settings.registry_url,
            keyspace=self._plan.keyspace,
        )
        ready: deque[VEvent] = deque()
        lock = applier_lock(reshard_id)
        while not stop.is_set():
            if not target.is_shown:
                sender.drain()
                target.show(lock)
            # What can be committed does not wait for more.
            stream.read(ready, 0.0 if self._last is not None and self._last.last else None)
            if not ready:
                self._settle()
            while ready:
                event = ready.popleft()
                if event.type is EventType.DDL or event.type is EventType.SKIP:
                    self._check_statement(event)
                self._take(event)
            sender.check()
            self._report_committed(sender)
            if self._last is None and sender.is_idle:  # else the target lacks a part of it
                self._reports.reporter.note(stream.place.position)
                self.is_sound = self.is_sound or stream.place.position() != position

    def _resume(self, target: TargetSession) -> StreamPosition:
        """Read the checkpoints, where the merged stream resumes."""
        found = target.checkpoints(self._plan.reshard_id)
        position = merged_position(found, self._plan, target.server.name)
        self._seqs = {source: at.seq for source, at in position.shards.items()}
        self._settled = dict(self._seqs)
        return position

    def _table(self, database: str, table: str) -> ReshardTargetTable:
        column = self._routes.tables[database, table].column
        return self._drained().table(database, table, column)

    def _sharding_column(self, event: VEvent) -> str:
        return self._routes.tables[event.database, event.table].column

    def _check_statement(self, event: VEvent) -> None:
        """Stop at a skip or DDL on a resharded table, after applying everything before it."""
        is_skip = event.type is EventType.SKIP
        if not is_skip and event.seq <= self._plan.agreed_seqs[event.shard]:
            return
        accepted = self._settings.accepted_skips if is_skip else self._settings.accepted_ddl
        try:
            if is_skip:
                check_skip(event)
            else:
                self._routes.check_statement(event, is_merge=self._is_merge)
        except (DefinitionChanged, TransactionSkipped):
            self._settle()
            # What verify found holds no longer, even where the operator says that targets match.
            self._drained().execute(void_verified_statement(self._plan.reshard_id))
            if not is_accepted(accepted, event.gtid, event.statement or ""):
                raise
            self._reports.skips += is_skip
            if self._is_merge and not is_skip and (emptied := self._routes.emptied(event)):
                self._empty(event, emptied)

    def _empty(self, event: VEvent, tables: Sequence[tuple[str, str]]) -> None:
        """Delete the rows of a source that has no more of them, in the transaction that is next."""
        source_range = ShardName.parse(event.shard).key_range
        self._move(event.shard, event, -event.seq, None)
        self._send(Lot(self._builder.take()))
        target = self._drained()
        assert isinstance(target, MergeSession)  # noqa: S101 - in a merge
        for database, table in tables:
            vindex = self._routes.tables[database, table].vindex
            target.empty(event.shard, self._table(database, table), source_range, vindex)

    def _take(self, event: VEvent) -> None:
        """Collect the record's changes for the target, and end its transaction in time."""
        if self._last is None:
            self._began_s = time.monotonic()
        for change in self._routes.changes(event, self._key_range):
            if self._changes.has_other_shape(event):
                self._send_part()
            self._changes.add(change, event)
            self._part_rows += 1
            self._rows += 1
        self._last = event
        self._records += 1
        is_large = self._part_rows >= COMMIT_ROWS or self._changes.size_bytes >= COMMIT_BYTES
        if is_large and not event.last:
            self._send_part()
        elif event.last and (is_large or self._is_due()):
            self._settle()

    def _is_due(self) -> bool:
        return (
            self._rows >= COMMIT_ROWS
            or self._records >= COMMIT_RECORDS
            or time.monotonic() - self._began_s >= COMMIT_S
        )

    def _statements(
        self, sections: list[Section], ends: Mapping[str, Checkpoint]
    ) -> list[TargetStatement]:
        """The changes, each source's behind a checkpoint whose token is newer than them.

        `ends`: the checkpoints with which the target transaction ends.
        """
        for section in sections:
            newest = section.newest
            if section.following:
                # A checkpoint that changes nothing is not in the binlog, so each one differs.
                self._move(section.source, newest, -newest.seq - section.following, None)
            else:
                self._move(section.source, newest, newest.seq, ends.get(section.source))
            for change, event in section.changes:
                self._builder.add(change, event)
        return self._builder.take()

    def _move(self, source: str, newest: VEvent, seq: int, end: Checkpoint | None) -> None:
        """Set the origin of the rows that follow: upper bound of the source's changes so far."""
        token = newest.token.to_string()
        before = self._seqs[source]
        if end is None:
            move = Checkpoint(source, seq, "", newest.timestamp_us, token)
        else:
            move = replace(end, token=token)
        statement = move_statement(self._plan.reshard_id, before, move, settles=end is not None)
        self._builder.checkpoint(statement, newest)
        self._seqs[source] = move.seq

    def _settle(self) -> None:
        """Commit everything up to the last record, checkpoints included, if it ends a transaction.

        The first statement is a checkpoint's, so that nothing is changed where another applier is.
        """
        last = self._last
        if last is None or not last.last:
            return
        position = last.position
        assert position is not None  # noqa: S101 - events of a merged stream have one
        text = position.to_string()
        ends = {
            source: Checkpoint(
                source, at.seq, text, at.token.timestamp_us or 0, at.token.to_string()
            )
            for source, at in position.shards.items()
            if at.seq != self._settled[source] and at.token is not None
        }
        sections = self._changes.take()
        statements = self._statements(sections, ends)
        for source in ends.keys() - {section.source for section in sections}:
            before = self._seqs[source]
            statement = move_statement(self._plan.reshard_id, before, ends[source], settles=True)
            statements.append(TargetStatement(statement, last, last, one_row=True))
            self._seqs[source] = ends[source].seq
        self._send(Lot(statements, position, self._rows))
        self._settled = dict(self._seqs)
        self._last = None
        self._records = self._rows = 0

    def _send_part(self) -> None:
        """Send what was collected, in a transaction that stays open."""
        self._send(Lot(self._statements(self._changes.take(), {})))

    def _send(self, lot: Lot) -> None:
        assert self._sender is not None  # noqa: S101 - `run` has made it
        self._sender.send(lot)
        self._part_rows = 0

    def _drained(self) -> TargetSession:
        """The target's session, while nothing is sent over it."""
        assert self._target is not None  # noqa: S101 - `run` has made both
        assert self._sender is not None  # noqa: S101
        self._sender.drain()
        return self._target

    def _report_committed(self, sender: Sender) -> None:
        assert self._target is not None  # noqa: S101 - the sender has it
        for lot in sender.committed():
            self._reports.aside = self._target.aside_rows
            assert lot.position is not None  # noqa: S101 - where a transaction ends
            self._reports.applied(lot.rows, lot.position)

    def close(self) -> None:
        """Disconnect from the target and Kafka; uncommitted changes are rolled back."""
        if self._sender is not None:
            self._sender.close()
            self._report_committed(self._sender)
        if self._target is not None:
            self._target.close()
        if self._stream is not None:
            self._stream.close()
