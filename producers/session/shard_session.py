"""One session of a shard's producer: from fencing and resuming to a stop or the first fault."""

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

from producers.errors import LogDisagrees, PublisherSpent, StopPassed
from producers.servers.server_list import ServerList
from producers.session.binlog_reader import WAIT_S_MAX
from producers.session.commit_pace import CELL_GAP_S, is_backlog, rest_s
from producers.session.context import SessionContext
from producers.session.parts import SessionParts, open_parts
from producers.session.status import Committed
from producers.session.stop_reason import leave_reason
from producers.settings import ProducerState
from producers.shard_log.publisher import Publisher
from producers.skip.record_writer import Decision, Written, write_record
from producers.start.choose_start import ChosenStart, choose_start
from producers.start.resume_point import resume_point
from topics.progress.codec import PROGRESS_SCHEMA_TEXT
from topics.progress.committed_tail import read_committed_tail
from topics.records.skip_record import SkipKind
from topics.records.table_shape import ddl_schema, schema_text

# Less is not waited for: a wait costs as much.
WAIT_S_MIN: Final = 0.001


class ShardSession:
    """Opens the parts of a session, and closes them however it ends.

    `committed` tells the supervisor how far it came, `streams` whether it has opened its stream.
    The publisher stays open until `close`: with it the shard's last session can still say why no
    other follows, and fences nobody for that.
    """

    def __init__(self, context: SessionContext, predecessor: Self | None = None) -> None:
        """Nothing is opened yet. `predecessor`: of the same process; closed when this one fences.

        Two clients of one process would fence each other.
        """
        self.committed = Committed("", 0, 0)
        self.streams = False
        self._context = context
        self._skip: Written | None = None
        self._predecessor = predecessor
        self._publisher: Publisher | None = None

    @property
    def speaker(self) -> Self | None:
        """The newest session that has fenced, which may leave a reason; None if there is none."""
        return self if self._publisher is not None else self._predecessor

    def leave_reason(self, error: BaseException, restarts: int = 0) -> None:
        """Leave in the progress topic why the producer stops, or goes on starting over."""
        if self._publisher is not None and self.committed.progress is not None:
            ids = self._context.schema_ids
            leave_reason(self._publisher, self.committed.progress, ids, error, restarts)

    def close(self) -> None:
        """Drop the publisher."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None

    def run(self) -> None:
        """Stream until the stop.

        Raises Rebuild and Retry where another session may succeed, Halt and UsageError where not.
        """
        context = self._context
        with ExitStack() as opened:
            self._starting(f"checking {', '.join(s.name for s in context.settings.servers)}")
            servers = ServerList.open(context.settings)
            opened.callback(servers.close)
            self._starting("taking over the log from the producer before")
            # The first registration on a fresh cluster takes a second: not in the first row's way.
            context.schema_ids.register(PROGRESS_SCHEMA_TEXT)
            context.schema_ids.register(schema_text(ddl_schema()))
            # The predecessor is fenced only now: a producer that can read no server must not stop
            # one that can.
            publisher = self._fenced(opened)
            self._starting("reading the end of the log")
            progress, tail = read_committed_tail(
                context.settings.kafka, context.topics, context.schema_ids, publisher.abort_open
            )
            self.committed.progress = progress
            self._starting("comparing the log with the servers")
            start = choose_start(context.settings, context.topics, servers, progress, tail)
            if start.is_new and context.has_committed.is_set():
                raise LogDisagrees(
                    f"{context.topics.log} is empty, but this producer has written to it: the "
                    f"topic was deleted and created again. Started again, it begins a new log "
                    f"(--from says where); copy the tables then"
                )
            point = start.point
            self.committed = Committed(
                str(point.position),
                max(point.head_us, 0),
                point.end_offset,
                skipped=point.skipped,
                ddl=point.ddl,
                progress=progress,
            )
            context.report(ProducerState.STARTING, self.committed, start.note)
            while not context.stop.is_set():
                try:
                    self._stream(start, publisher)
                except StopPassed as stop:
                    start = self._pass(start, publisher, stop.gtid)

    def _stream(self, start: ChosenStart, publisher: Publisher) -> None:
        """Stream until the stop, or the end of an operator's order to pass stops."""
        context = self._context
        with ExitStack() as opened:
            parts = open_parts(context, start, publisher, self.committed, opened)
            context.report(ProducerState.STREAMING, self.committed, "")
            self.streams = True
            context.has_streamed.set()
            if start.is_new and start.point.head_us >= 0:
                # Without rows: it tells readers from which time on this log has everything.
                parts.committer.commit()
            turns = Turns(context, parts)
            while not context.stop.is_set():
                turns.next()
                if parts.reader.has_order_ended():
                    parts.committer.commit()
                    context.stop.set()
            parts.committer.commit_rest()

    def _pass(self, start: ChosenStart, publisher: Publisher, gtid: str) -> ChosenStart:
        """Write the SKIP record of a transaction that an order passes; return where to go on."""
        context, order = self._context, self._context.skip_order
        assert order is not None  # noqa: S101 - it passes the stop
        settings = context.settings
        publisher.abort()
        before = self._skip
        if before is not None and before.progress is self.committed.progress:
            point = before.point
        else:
            progress, tail = read_committed_tail(
                settings.kafka, context.topics, context.schema_ids, publisher.abort_open
            )
            read = resume_point(context.topics, settings.flavor, progress, tail)
            point = start.point if read is None else read
        position = point.position.add_gtid(gtid)
        decision = Decision(
            SkipKind.TRANSACTION, gtid, gtid, position, start.server.name, point.last
        )
        self._skip = written = write_record(
            settings, publisher, context.schema_ids, point, decision, order.reason
        )
        self.committed.position = written.report.position
        self.committed.end_offset = written.point.end_offset
        self.committed.skipped = written.point.skipped
        self.committed.progress = written.progress
        self.committed.commits += 1
        order.add(written.report)
        if publisher.spent:
            raise PublisherSpent(f"{context.topics.log}: {publisher.spent}; opening a new producer")
        return replace(start, point=written.point)

    def _starting(self, what: str) -> None:
        """Say what the first session does; later ones say why they were needed."""
        if not self._context.has_streamed.is_set():
            self._context.report(ProducerState.STARTING, self.committed, what)

    def _fenced(self, opened: ExitStack) -> Publisher:
        """Open the publisher and take over; what it has open when the session ends is aborted."""
        context = self._context
        if self._predecessor is not None:
            self._predecessor.close()
            self._predecessor = None  # or each session would keep all that came before it
        publisher = Publisher(
            context.settings.kafka,
            context.topics,
            context.transaction_timeout_ms,
            self._is_stopping,
            self._waits_for_kafka,
        )
        opened.callback(publisher.end)
        try:
            publisher.fence()
        except BaseException:
            publisher.close()
            raise
        self._publisher = publisher
        return publisher

    def _waits_for_kafka(self, what: str) -> None:
        self._context.report(ProducerState.WAITING_FOR_KAFKA, self.committed, what)

    def _is_stopping(self) -> bool:
        """Waits for Kafka ask it again and again: they are turns of the loop, too."""
        self._context.counters.turn()
        return self._context.stop.is_set()


class Turns:
    """The session's loop: each turn waits for bytes, decodes them, and commits what is due."""

    def __init__(self, context: SessionContext, parts: SessionParts) -> None:
        self._context = context
        self._parts = parts
        self._heartbeat_note = ""

    def next(self) -> None:
        """Take one turn."""
        parts = self._parts
        self._context.counters.turn()
        parts.watch.check()
        self._report_heartbeat_rows()
        self._pause()
        parts.reader.read(self._wait_s())
        dry = parts.reader.is_dry
        parts.committer.commit_if_due(dry=dry)
        parts.heads.advance(dry=dry)
        if parts.copier.step(dry=dry):
            parts.committer.commit()

    def _report_heartbeat_rows(self) -> None:
        note = self._parts.heartbeat_rows.note
        if note != self._heartbeat_note:
            self._heartbeat_note = note
            self._context.report(ProducerState.STREAMING, self._parts.committer.committed, note)

    def _pause(self) -> None:
        """After a commit at the live edge, let rows gather until a new cell of the grid begins.

        Waking for each transaction would cost more than its rows do.
        """
        parts, committer = self._parts, self._parts.committer
        if not parts.reader.is_dry or is_backlog(committer.committed.lag_ms):
            return
        if parts.decoder.in_transaction or parts.decoder.messages:
            return
        pause_s = rest_s(parts.clock.now_us())
        is_new = time.monotonic() - committer.committed_s < CELL_GAP_S
        if is_new and pause_s <= parts.copier.wait_s_max:
            time.sleep(pause_s)

    def _wait_s(self) -> float:
        """How long to wait for bytes at most."""
        parts, committer = self._parts, self._parts.committer
        # Only the server's bytes end a transaction, or bring the log to where the server was.
        if parts.decoder.in_transaction:
            return WAIT_S_MAX
        wait_s = min(WAIT_S_MAX, parts.copier.wait_s_max)
        if parts.decoder.messages:
            due_s = committer.dry_due_s
        elif parts.clock.moment is not None:
            return wait_s
        else:
            due_s = committer.committed_s + self._context.settings.heartbeat_ms / 1000
        return min(wait_s, max(WAIT_S_MIN, due_s - time.monotonic()))
