"""One session of a shard's producer: from fencing and resuming to a stop or the first fault."""

import logging
import re
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

from event_token.errors import ShardstreamError, TakenOver
from producers.errors import LogDisagrees, PublisherSpent, StopPassed
from producers.publisher import Publisher
from producers.servers.server_list import ServerList
from producers.session.context import Committed, SessionContext
from producers.session.streaming import SessionStream
from producers.settings import ProducerState
from producers.skip.record_writer import SkipDecision, WrittenSkip, write_record
from producers.start.choose_start import ChosenStart, choose_start, resume_point
from topics.kafka.errors import TopicMissing
from topics.progress.codec import PROGRESS_KEY, PROGRESS_SCHEMA_TEXT, encode_progress, note_headers
from topics.progress.committed_tail import read_committed_tail
from topics.progress.record import StopReason
from topics.records.skip_record import SkipKind
from topics.records.statement_record import STATEMENT_SCHEMA_TEXT

# What an operator reads in one sentence of a page; the producer's log has all of it.
TEXT_MAX: Final = 400
# There is no topic to write to after TopicMissing, another producer writes after TakenOver, and
# after LogDisagrees no record may be added before somebody has looked.
_UNTOLD: Final = (TakenOver, TopicMissing, LogDisagrees)
# What producers.errors writes into messages, to be typed as it is. A longer one, of a set of many
# GTIDs, is in the producer's log.
_COMMAND: Final = re.compile(r"shardstream skip \S+ \S+ --(?:gtid|lost) .+? --reason TEXT")
COMMAND_MAX: Final = 4_000
_CREDENTIALS: Final = re.compile(r"://[^/@\s]+@")

_LOG: Final = logging.getLogger("shardstream.kafka")


def stop_reason(error: BaseException, at_us: int, restarts: int = 0) -> StopReason:
    """Return an error as one line without credentials, with the command that it names. Pure.

    Messages of our own hold no values of rows but a primary key; those of others might.
    """
    said = "an error that nobody expected: the producer's log has it"
    if isinstance(error, ShardstreamError):
        said = " ".join(str(error).split())
    text = _CREDENTIALS.sub("://***@", said)
    found = _COMMAND.search(text)
    command = "" if found is None or len(found[0]) > COMMAND_MAX else found[0]
    if len(text) > TEXT_MAX:
        text = text[: TEXT_MAX - 3] + "..."
    return StopReason(at_us, type(error).__name__, text, restarts, command)


class ShardSession:
    """Opens the parts of a session, and closes them however it ends.

    The supervisor reads how far it came (`committed`) and whether its stream was opened
    (`streams`). The publisher stays open until `close`: with it the shard's last session can still
    say why no other follows, and fences nobody for that.
    """

    def __init__(self, context: SessionContext, predecessor: Self | None = None) -> None:
        """Nothing is opened yet. `predecessor`: of the same process; closed when this one fences.

        Two clients of one process would fence each other.
        """
        self.committed = Committed("", 0, 0)
        self.streams = False
        self._context = context
        self._skip: WrittenSkip | None = None
        self._predecessor = predecessor
        self._publisher: Publisher | None = None

    @property
    def speaker(self) -> Self | None:
        """The newest session that has fenced, which may leave a reason; None if there is none."""
        return self if self._publisher is not None else self._predecessor

    def leave_reason(self, error: BaseException, restarts: int = 0) -> None:
        """Commit the last progress once more, with why the producer stops or goes on restarting.

        Nothing for errors of another's log. The record's times stay, so nobody takes the shard for
        alive. What Kafka refuses is not raised: the error that stops the producer is more
        important.
        """
        publisher, last = self._publisher, self.committed.progress
        if publisher is None or last is None or isinstance(error, _UNTOLD):
            return
        progress = replace(
            last,
            first_seq=last.last_seq + 1,
            ticks=(),
            mark=None,
            in_parts=(),
            stopped=stop_reason(error, time.time_ns() // 1000, restarts),
        )
        value = encode_progress(progress, self._context.schema_ids)
        head_ms, headers = progress.head_us // 1000, note_headers(progress)
        self._context.ownership.know(last, progress)
        try:
            publisher.leave(value, PROGRESS_KEY, head_ms, headers)
        except ShardstreamError as refused:
            _LOG.info("%s: the reason of the stop is not left: %s", publisher.topics.log, refused)

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
            context.schema_ids.register(STATEMENT_SCHEMA_TEXT)
            # The predecessor is fenced only now: a producer that can read no server must not stop
            # one that can.
            publisher = self._fenced(opened)
            self._starting("reading the end of the log")
            progress, tail = read_committed_tail(
                context.settings.kafka, context.topics, context.schema_ids, publisher.abort_open
            )
            self.committed.progress = progress
            context.ownership.know(progress)
            self._starting("comparing the log with the servers")
            start = choose_start(context.settings, servers, progress, tail)
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
                passed=point.passed,
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
            stream = SessionStream(context, start, publisher, self.committed, opened)
            context.report(ProducerState.STREAMING, self.committed, "")
            self.streams = True
            context.has_streamed.set()
            stream.run(is_new_since_a_time=start.is_new and start.point.head_us >= 0)

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
        decision = SkipDecision(
            SkipKind.TRANSACTION, gtid, gtid, position, start.server.name, point.lasts
        )
        self._skip = written = write_record(
            settings, publisher, context.schema_ids, point, decision, order.reason
        )
        self.committed.position = written.report.position
        self.committed.end_offset = written.point.end_offset
        self.committed.skipped = written.point.skipped
        self.committed.progress = written.progress
        context.ownership.know(written.progress)
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
            context.message_bytes_max,
        )
        opened.callback(publisher.end)
        try:
            context.ownership.claim()
            publisher.fence(context.ownership.check)
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
