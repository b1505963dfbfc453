"""One session of a shard's producer: from fencing and resuming to a stop or the first fault."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from producers.errors import LogDisagrees
from producers.servers.server_list import ServerList
from producers.session.binlog_reader import WAIT_S_MAX
from producers.session.commit_pace import CELL_GAP_S, is_backlog, rest_s
from producers.session.context import SessionContext
from producers.session.parts import SessionParts, open_parts
from producers.session.status import Committed
from producers.session.stop_reason import leave_reason
from producers.settings import ProducerState
from producers.shard_log.publisher import Publisher
from producers.start.choose_start import choose_start
from topics.progress.codec import PROGRESS_SCHEMA_TEXT
from topics.progress.committed_tail import read_committed_tail
from topics.records.table_shape import ddl_schema, schema_text

# Less is not waited for: a wait costs as much.
WAIT_S_MIN: Final = 0.001


class ShardSession:
    """Opens the parts of a session, and closes them however it ends.

    `committed` tells the supervisor how far it came.
    """

    def __init__(self, context: SessionContext) -> None:
        """Nothing is opened yet."""
        self.committed = Committed("", 0, 0)
        self._context = context

    def run(self) -> None:
        """Stream until the stop.

        Raises Rebuild and Retry where another session may succeed, Halt and UsageError where not.
        """
        context = self._context
        with ExitStack() as opened:
            servers = ServerList.open(context.settings)
            opened.callback(servers.close)
            # The first registration on a fresh cluster takes a second: not in the first row's way.
            context.schema_ids.register(PROGRESS_SCHEMA_TEXT)
            context.schema_ids.register(schema_text(ddl_schema()))
            # The predecessor is fenced only now: a producer that can read no server must not stop
            # one that can.
            publisher = Publisher(
                context.settings.kafka,
                context.topics,
                context.transaction_timeout_ms,
                self._is_stopping,
            )
            opened.callback(publisher.close)
            publisher.fence()
            progress, tail = read_committed_tail(
                context.settings.kafka, context.topics, context.schema_ids, publisher.abort_open
            )
            self.committed.progress = progress
            opened.push(self._leaving_reason(publisher))
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
            parts = open_parts(context, start, publisher, self.committed, opened)
            context.report(ProducerState.STREAMING, self.committed, "")
            if start.is_new and point.head_us >= 0:
                # Without rows: it tells readers from which time on this log has everything.
                parts.committer.commit()
            turns = Turns(context, parts)
            while not context.stop.is_set():
                turns.next()
            parts.committer.commit_rest()

    def _leaving_reason(self, publisher: Publisher) -> Callable[..., None]:
        """Return what leaves the reason in the progress topic when an error ends the session."""

        def leave(_kind: object, error: BaseException | None, _trace: object) -> None:
            if error is not None and self.committed.progress is not None:
                leave_reason(publisher, self.committed.progress, self._context.schema_ids, error)

        return leave

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
