"""Filtered replication: applies to a target those rows of the sources that belong to it.

The checkpoint is on the target and moves in the same transaction as the rows, so a killed applier
resumes exactly after its last commit. Nothing else stores how far it is. Of a backlog, many
transactions of the sources are one of the target, in which only the last change of a row is left.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from event_token import KeyRange, ShardName, StreamPosition
from event_token.errors import Rebuild, Retry, UsageError
from resharding.apply.applier_status import ApplierStatus, Told
from resharding.apply.last_changes import KeyUse, LastChanges, Section
from resharding.apply.routing import Routes, check_skip
from resharding.apply.sender import Lot, Sender
from resharding.apply.source_stream import source_stream
from resharding.apply.statements import (
    STATEMENT_ROWS_MAX,
    Statement,
    StatementBuilder,
    TargetTable,
)
from resharding.apply.target_session import TargetSession
from resharding.bookkeeping import (
    Checkpoint,
    merged_position,
    move_statement,
    settle_statement,
    void_verified_statement,
)
from resharding.errors import CheckpointMoved, DefinitionChanged, DoesNotApply, TransactionSkipped
from resharding.plan.reshard_plan import ReshardPlan
from resharding.progress import applier_lock
from resharding.server import ReshardServer
from topics.kafka.client import ClientConfig
from topics.names import ApplierName
from topics.readers.reporter import ReaderReporter
from topics.records.accepted_skips import is_accepted
from topics.records.vevent import EventType, VEvent
from topics.stream.merged_stream import MergedStream

# A target transaction ends with the source transaction that reaches one of these, and a larger
# source transaction is sent in parts, so that one of any size fits in memory.
COMMIT_ROWS: Final = 10_000
COMMIT_BYTES: Final = 4 * 1024 * 1024
# Of which most may belong to other targets.
COMMIT_RECORDS: Final = 50_000
# Locks are not held for longer, and observers see how far it is.
COMMIT_S: Final = 1.0
# A failover takes some seconds; a target that is away for longer needs an operator.
AWAY_S_MAX: Final = 300.0
AWAY_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApplierSettings:
    """One target's applier.

    `target`: its primary at the start; `find_target` looks for it again after a fault.
    `accepted_ddl`: GTIDs of DDL that the targets already match; `accepted_skips`: of skipped
    transactions despite which targets and sources agree.
    """

    plan: ReshardPlan
    target: ReshardServer
    kafka: ClientConfig
    registry_url: str | None = None
    accepted_ddl: frozenset[str] = frozenset()
    accepted_skips: frozenset[str] = frozenset()
    find_target: Callable[[], ReshardServer] | None = None

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
    tell: Callable[[ApplierStatus], None] = lambda _status: None,
) -> None:
    """Apply until `stop` is set, retrying transient faults for AWAY_S_MAX without progress.

    Raises Halts of the reading core, DoesNotApply, DefinitionChanged, TransactionSkipped,
    CheckpointMoved,
    ServerRefused; the last Retry or Rebuild when a server or Kafka was away for too long.
    """
    plan, target = settings.plan, settings.target.shard
    name = ApplierName(plan.reshard_id, target)
    key_range = ShardName.parse(target).key_range
    # Not closed: an end waits for no last report. Nobody hears from it again, which says enough.
    reporter = ReaderReporter(settings.kafka, plan.keyspace, name, key_range)
    _apply(settings, stop, Told(target, tell, reporter))


def _apply(settings: ApplierSettings, stop: threading.Event, told: Told) -> None:
    careful = False
    has_moved = False
    away_since_s: float | None = None
    while not stop.is_set():
        rows_before = told.rows_total
        session = _Session(settings, told, careful=careful)
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
            told.note(f"{moved}; reading it again, as that one may have ended")
        except (Retry, Rebuild) as error:
            if told.rows_total > rows_before or away_since_s is None:
                away_since_s = time.monotonic()
            if time.monotonic() - away_since_s > AWAY_S_MAX:
                raise
            told.note(f"{error}; retrying")
            stop.wait(AWAY_PAUSE_S)
        finally:
            session.close()
            has_moved = has_moved and not session.has_committed


class _Session:
    """One attempt of an applier, starting at the target's checkpoint."""

    def __init__(self, settings: ApplierSettings, told: Told, *, careful: bool) -> None:
        self._settings = settings
        self._plan = settings.plan
        self._told = told
        self._careful = careful
        self._routes = Routes(settings.plan.tables)
        self._key_range: KeyRange = ShardName.parse(settings.target.shard).key_range
        self._target: TargetSession | None = None
        self._sender: Sender | None = None
        self._stream: MergedStream | None = None
        self._changes = LastChanges(self._key_use)
        self._key_uses: dict[tuple[str, str], KeyUse] = {}
        self._settled: dict[str, int] = {}  # seq of the checkpoints, per source
        self._seqs: dict[str, int] = {}  # the same after what was sent of the open transaction
        self._last: VEvent | None = None  # the last record that was taken and not settled
        self._records = self._rows = self._part_rows = 0  # of the open transaction, and unsent
        self._began_s = 0.0

    @property
    def has_committed(self) -> bool:
        """Whether the target has a transaction of this session."""
        return self._sender is not None and self._sender.has_committed

    def run(self, stop: threading.Event, *, looks_again: bool) -> None:
        settings = self._settings
        server = settings.present_target() if looks_again else settings.target
        target = self._target = TargetSession(server)
        position = self._resume(target)
        sender = self._sender = Sender(target)
        self._builder = StatementBuilder(
            self._table,
            rows_max=1 if self._careful else STATEMENT_ROWS_MAX,
            packet_bytes_max=target.packet_bytes_max,
        )
        stream = self._stream = source_stream(
            position,
            config=self._settings.kafka,
            registry_url=self._settings.registry_url,
            keyspace=self._plan.keyspace,
        )
        ready: deque[VEvent] = deque()
        lock = applier_lock(self._plan.reshard_id)
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
            self._tell_committed(sender)
            if self._last is None and sender.is_idle:  # else the target lacks a part of it
                self._told.reporter.note(stream.place.position)

    def _resume(self, target: TargetSession) -> StreamPosition:
        """Read the checkpoints, where the merged stream resumes."""
        found = target.checkpoints(self._plan.reshard_id)
        position = merged_position(found, self._plan, target.server.name)
        self._seqs = {source: at.seq for source, at in position.shards.items()}
        self._settled = dict(self._seqs)
        return position

    def _table(self, database: str, table: str) -> TargetTable:
        column = self._routes.tables[database, table].column
        return self._drained().table(database, table, column)

    def _key_use(self, event: VEvent) -> KeyUse:
        name = (event.database, event.table)
        use = self._key_uses.get(name)
        if use is None:
            # Of one source, all rows are as they were together, so nobody needs to know.
            apart = len(self._plan.sources) > 1 and self._drained().holds_rows_apart(event)
            use = self._key_uses[name] = KeyUse(self._routes.tables[name].column, apart)
        return use

    def _check_statement(self, event: VEvent) -> None:
        """Stop at a skip or DDL on a resharded table, after applying everything before it."""
        is_skip = event.type is EventType.SKIP
        if not is_skip and event.seq <= self._plan.agreed_seqs[event.shard]:
            return
        accepted = self._settings.accepted_skips if is_skip else self._settings.accepted_ddl
        try:
            check_skip(event) if is_skip else self._routes.check_statement(event)
        except (DefinitionChanged, TransactionSkipped):
            self._settle()
            # What verify found holds no longer, even where the operator says that targets match.
            self._drained().execute(void_verified_statement(self._plan.reshard_id))
            if not is_accepted(accepted, event.gtid, event.statement or ""):
                raise
            self._told.skips += is_skip

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
    ) -> list[Statement]:
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
            statement = move_statement(self._plan.reshard_id, before, move)
        else:
            move = replace(end, token=token)
            statement = settle_statement(self._plan.reshard_id, before, move)
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
            statement = settle_statement(self._plan.reshard_id, self._seqs[source], ends[source])
            statements.append(Statement(statement, last, last, one_row=True))
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

    def _tell_committed(self, sender: Sender) -> None:
        for lot in sender.committed():
            assert lot.position is not None  # noqa: S101 - where a transaction ends
            self._told.applied(lot.rows, lot.position)

    def close(self) -> None:
        """Disconnect from the target and Kafka; uncommitted changes are rolled back."""
        if self._sender is not None:
            self._sender.close()
            self._tell_committed(self._sender)
        if self._target is not None:
            self._target.close()
        if self._stream is not None:
            self._stream.close()
