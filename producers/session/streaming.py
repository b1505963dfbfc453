"""The stream of a session: its parts, and the loop that decodes and commits."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

from databases.errors import ServerLost
from event_token import Flavor, parse_gtid_set
from event_token.errors import Rebuild, ShardstreamError
from producers.clock import now_us
from producers.copy.copier import Copier
from producers.decoder import Decoder, DecoderOptions
from producers.decoder.errors import DecoderHalt, RuleBroken, ServerError, WriteAfterEnd
from producers.errors import (
    StopPassed,
    StopsBehindOthers,
    TransactionTooLong,
    out_of_order_advice,
    skip_advice,
)
from producers.filters.binding import TableFilters, sharding_columns
from producers.publisher import Publisher
from producers.replication.stream import (
    STREAM_SILENCE_S_MAX,
    ReplicationStream,
    server_error,
    server_errors,
)
from producers.servers.definitions_ahead import DefinitionsAhead, Wait
from producers.servers.server_catalog import ServerCatalog, rule_problems
from producers.servers.server_list import OpenServer
from producers.servers.statement_checks import StatementCatalog
from producers.servers.table_proofs import ProvedTables
from producers.servers.watch import ServerWatch
from producers.session.binlog_watch import BinlogWatch
from producers.session.committer import CELL_GAP_S, Committer, is_backlog, rest_s
from producers.session.context import Committed, SessionContext
from producers.session.heads import HeadKeeper, HeartbeatWriter, ServerClock
from producers.settings import ProducerState
from producers.start.choose_start import ChosenStart, ended_by, is_cancelled, is_sharded
from producers.start.last_transaction import is_at_its_place
from topics.progress.copy_topic import record_key

# While rows of one transaction keep coming, only bytes end a wait; a stop is noticed within this.
WAIT_S_MAX: Final = 0.1
# Less is not waited for: a wait costs as much.
WAIT_S_MIN: Final = 0.001
# What the stream waits for is shown after this time, and then each time again.
NOTE_GAP_S: Final = 5.0

Notice = Callable[[str], None]


class SessionStream:
    """The stream of a session, and all that reads or writes beside it."""

    def __init__(
        self,
        context: SessionContext,
        start: ChosenStart,
        publisher: Publisher,
        committed: Committed,
        opened: ExitStack,
    ) -> None:
        """Open it; `opened` closes it. Raises ServerLost, ServerRefused, Retry and UsageError."""
        settings, server = context.settings, start.server.settings

        def notice(text: str) -> None:
            context.report(ProducerState.STREAMING, committed, text)

        self._context = context
        self._committed, self._publisher = committed, publisher
        self._noted_s = 0.0
        # The heartbeat's thread may outlive the session for a moment: it holds the clock alone.
        self._clock = clock = ServerClock(context, start, notice)
        stream = _open_stream(context, start)
        opened.callback(stream.close)
        self._watch = ServerWatch(
            settings, server, lambda: committed.position, lambda: committed.lasts
        )
        opened.callback(self._watch.close)
        family = start.server.family
        self._binlogs = BinlogWatch(settings, server, family, context.counters)
        opened.callback(self._binlogs.close)
        ended = ended_by(settings.kafka, context.topics, context.schema_ids)
        self._heartbeat_rows = HeartbeatWriter(settings, lambda: clock.is_replica, ended)
        opened.callback(self._heartbeat_rows.close)
        ahead = _look_ahead(context, start, self._waits)
        proofs = None
        if settings.metadata == "proved":
            proofs = ProvedTables(start.server, settings, ahead)
        self._decoder = _open_decoder(context, start, publisher, notice, ahead, proofs, ended)
        opened.callback(self._decoder.close)
        self._copier = Copier(settings, server, self._decoder, publisher, context.failed_copies)
        opened.callback(self._copier.close)
        proved = self._copier.take_proved()
        if proofs is None:
            # Definitions that are read from now on change nothing there.
            self._copier.write([(record_key(each), None) for each in proved.values()])
        else:
            progress, skipped = committed.progress, start.point.skipped
            proofs.begin(
                proved,
                0 if skipped is None else skipped.count,
                None if progress is None or start.is_new else progress.proved,
            )
        self._committer = Committer(
            context,
            start,
            committed,
            publisher,
            self._decoder,
            self._copier,
            proofs,
            server_clock_us=self._clock.now_us,
        )
        self._reader = BinlogReader(stream, self._committer)
        self._heads = HeadKeeper(self._clock, self._committer)
        self._heartbeat_note = ""

    def run(self, *, is_new_since_a_time: bool) -> None:
        """Stream until the stop, or the end of an operator's order to pass stops.

        `is_new_since_a_time`: begin with a commit without rows, which gives readers the time from
        which on this log has everything.
        """
        if is_new_since_a_time:
            self._committer.commit()
        while not self._context.stop.is_set():
            self._turn()
            if self._reader.has_order_ended():
                self._committer.commit()
                self._context.stop.set()
        self._committer.commit_rest()

    def _turn(self) -> None:
        """Wait for bytes, decode them, and commit what is due."""
        self._context.counters.turn()
        self._watch.check()
        self._binlogs.check()
        self._report_heartbeat_rows()
        self._pause()
        self._reader.read(self._wait_s())
        dry = self._reader.is_dry
        self._committer.commit_if_due(dry=dry)
        self._heads.advance(dry=dry)
        if self._copier.step(dry=dry):
            self._committer.commit()

    def _waits(self, what: str, since_s: float) -> bool:
        """A turn of the loop while rows are decoded that something has to be known for first.

        Return whether the rows so far can wait on. Raises Rebuild at a stop.
        """
        context, now_s = self._context, time.monotonic()
        context.counters.turn()
        if context.stop.is_set():
            raise Rebuild(f"stopped: {what}")
        if now_s - max(since_s, self._noted_s) >= NOTE_GAP_S:
            self._noted_s = now_s
            text = f"{what}, for {now_s - since_s:.0f} s"
            context.report(ProducerState.STREAMING, self._committed, text)
        return not self._publisher.is_old

    def _report_heartbeat_rows(self) -> None:
        self._heartbeat_rows.ended_by = self._decoder.ended_by
        note = self._heartbeat_rows.note
        if note != self._heartbeat_note:
            self._heartbeat_note = note
            self._context.report(ProducerState.STREAMING, self._committer.committed, note)

    def _pause(self) -> None:
        """After a commit at the live edge, let rows gather until a new cell of the grid begins.

        Waking for each transaction would cost more than its rows do.
        """
        committer = self._committer
        if not self._reader.is_dry or is_backlog(committer.committed.lag_ms):
            return
        if self._decoder.in_transaction or self._decoder.messages:
            return
        pause_s = rest_s(self._clock.now_us())
        is_new = time.monotonic() - committer.committed_s < CELL_GAP_S
        if is_new and pause_s <= self._copier.wait_s_max:
            time.sleep(pause_s)

    def _wait_s(self) -> float:
        """How long to wait for bytes at most."""
        committer = self._committer
        # Only the server's bytes end a transaction, or bring the log to where the server was.
        if self._decoder.in_transaction:
            return WAIT_S_MAX
        wait_s = min(WAIT_S_MAX, self._copier.wait_s_max)
        if self._decoder.messages:
            due_s = committer.dry_due_s
        elif self._clock.moment is not None:
            return wait_s
        else:
            due_s = committer.committed_s + self._context.settings.heartbeat_ms / 1000
        return min(wait_s, max(WAIT_S_MIN, due_s - time.monotonic()))


def _open_stream(context: SessionContext, start: ChosenStart) -> ReplicationStream:
    server = start.server
    context.counters.follow(server.name)
    own = server.own_name()
    return server.open_stream(start.point.position, context.server_id, own)


def _look_ahead(context: SessionContext, start: ChosenStart, wait: Wait) -> DefinitionsAhead:
    """What sessions before have found stays where the server still has what they read last."""
    server, last = start.server, context.looked.last
    if last is not None and not is_at_its_place(server, last):
        context.looked.forget()
    return DefinitionsAhead(server, context.looked, wait, context.settings.outage_s)


def _open_decoder(
    context: SessionContext,
    start: ChosenStart,
    publisher: Publisher,
    notice: Notice,
    ahead: DefinitionsAhead,
    proofs: ProvedTables | None,
    ended: tuple[str, ...],
) -> Decoder:
    settings, point, server = context.settings, start.point, start.server
    vindexes = sharding_columns(settings.vindexes)
    rules = None
    if settings.filters:
        rules = TableFilters(settings.filters, vindexes, _rule_check(context, server))
    refuses_cascades = not (settings.accept_unlogged_cascades or server.logs_cascades())
    options = DecoderOptions(
        topic=context.topics.log,
        keyspace=settings.keyspace,
        shard=settings.shard,
        flavor=settings.flavor,
        position=str(point.position),
        next_seq=point.next_seq,
        last_timestamp_us=point.clamp_us,
        last_cell_us=point.last_cell_us,
        produce=publisher.produce,
        record_bytes_max=settings.kafka.record_bytes_max,
        message_bytes_max=publisher.message_bytes_max,
        on_full=publisher.wait_for_room,
        schema_id=context.schema_ids.register,
        verify_checksum=settings.verify_checksum,
        max_clock_ahead_us=settings.max_clock_ahead_ms * 1000,
        now_us=now_us,
        on_notice=notice,
        ended_by=ended,
        is_sharded=lambda database: is_sharded(settings.kafka, settings.keyspace, database),
        is_cancelled=partial(is_cancelled, settings.kafka, settings.keyspace),
        vindexes=vindexes,
        rules=rules,
        text_as_bytes=settings.text_as_bytes,
        catalog=ServerCatalog(
            settings.flavor, settings.typed_columns, server.settings, server.connection, notice
        ),
        statement_checks=StatementCatalog(server, ahead, has_cascades=not refuses_cascades),
        proofs=proofs,
        refuses_cascades=refuses_cascades,
        lower_case_names=server.has_lower_case_names(),
        on_delivery=publisher.on_delivery,
        rolled_back=frozenset(context.rolled_back),
    )
    return Decoder(options)


def _rule_check(context: SessionContext, server: OpenServer) -> Callable[[], None]:
    """What the decoder calls after a DDL statement."""

    def check() -> None:
        """Raise RuleBroken if the filter rules no longer fit the server's tables."""
        with server_errors(server.settings, "checking filter rules on"):
            problems = rule_problems(
                server.connection, server.name, context.settings, at_start=False
            )
        if problems:
            raise RuleBroken("; ".join(map(str, problems)))

    return check


class BinlogReader:
    """Waits for bytes of one stream and decodes them.

    `is_dry`: the last `read` left nothing in the stream.
    """

    def __init__(self, stream: ReplicationStream, committer: Committer) -> None:
        self.is_dry = False
        self._stream = stream
        self._committer = committer
        self._decoder = committer.decoder
        self._publisher = committer.publisher
        self._order = committer.context.skip_order
        self._heard_s = time.monotonic()

    def read(self, wait_s: float) -> None:
        """Wait for bytes and decode what has come.

        Raises ServerLost when the server has been silent for too long, TransactionTooLong, and
        the errors of stream, decoder and publisher.
        """
        if self._stream.wait(wait_s):
            if self._stream.fill():
                self._heard_s = time.monotonic()
                self._decode()
        elif time.monotonic() - self._heard_s > STREAM_SILENCE_S_MAX:
            raise ServerLost(
                f"{self._committer.server.name} has sent nothing for {STREAM_SILENCE_S_MAX} s, not "
                "even a heartbeat"
            )
        rows = self._decoder.messages
        if self._decoder.in_transaction and rows:  # brokers learn of it with the first record
            what = f"transaction {self._decoder.gtid} with {rows} rows so far"
            try:
                self._publisher.check_age(what)
            except TransactionTooLong as error:
                raise self._advised(error) from error
        self.is_dry = not self._stream.wait(0)

    def _decode(self) -> None:
        decoder, stream = self._decoder, self._stream
        while True:
            before = stream.start
            limit = self._committer.row_limit()
            with self._publisher.errors("writing rows"):
                try:
                    stream.start = decoder.feed(stream.buffer, stream.start, stream.end, limit)
                except ServerError as error:
                    where = f"replication stream of {self._committer.server.name}"
                    raise server_error(error.code, error.server_message, where) from error
                except DecoderHalt as error:
                    raise self._advised(error) from error
            counters = self._committer.context.counters
            counters.binlog_bytes += stream.start - before
            counters.queue_bytes = decoder.bytes_produced
            self._publisher.serve()
            if decoder.has_mark:
                self._committer.commit()  # A mark ends its Kafka transaction.
                continue
            if self.has_order_ended():
                return
            if decoder.in_transaction or decoder.messages < limit or stream.start == before:
                return
            self._committer.commit_if_due(dry=False)

    def _advised(self, error: DecoderHalt | TransactionTooLong) -> ShardstreamError:
        """Name the way past the transaction that stops the shard, if it is one.

        MariaDB's positions allow it only when all transactions before it are committed.
        """
        if not self._decoder.in_transaction:
            return error
        gtid = self._decoder.gtid
        if self._decoder.transactions and not self._committer.is_careful:
            return StopsBehindOthers(gtid, error)
        if isinstance(error, WriteAfterEnd):
            return error  # its message names the commands of the reshard
        topics = self._publisher.topics
        if self._is_out_of_order(gtid):
            return type(error)(f"{error}. {out_of_order_advice(topics, gtid)}")
        if isinstance(error, TransactionTooLong):
            return TransactionTooLong(f"{error}. {skip_advice(topics, gtid, force=True)}")
        if self._order is not None and self._order.covers(gtid, error):
            return StopPassed(gtid, error)
        return type(error)(f"{error}. {skip_advice(topics, gtid)}", error.tables)

    def has_order_ended(self) -> bool:
        """Whether the operator's order to pass stops, if there is one, has been carried out."""
        return self._order is not None and self._order.check_end(self._decoder)

    def _is_out_of_order(self, gtid: str) -> bool:
        """Whether a number of MariaDB is not above the last one that the log holds."""
        committed = self._committer.committed.position
        flavor = self._committer.context.settings.flavor
        reached = parse_gtid_set(committed, flavor)
        return flavor is Flavor.MARIADB and reached.reaches(parse_gtid_set(gtid, flavor))
