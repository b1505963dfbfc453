"""One life of a shard's producer: from fencing and resuming to a stop or the first fault."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Final

from databases.errors import ServerLost
from event_token import parse_gtid_set
from producers.copy.copier import Copier
from producers.decoder import BatchSummary, Decoder
from producers.decoder.errors import RuleBroken, ServerError
from producers.errors import LogDisagrees, PublisherSpent
from producers.filters.start_check import rule_problems
from producers.filters.table_filters import TableFilters
from producers.preflight.hidden_types import server_types
from producers.servers.connection import (
    STREAM_SILENCE_S_MAX,
    ReplicationStream,
    server_error,
    server_errors,
)
from producers.servers.flavor import ServerFamily, family_of
from producers.servers.server_list import ServerList
from producers.servers.watch import ServerWatch
from producers.session.commit_pace import CELL_GAP_S, CommitPace, dry_gap_s, is_backlog, rest_s
from producers.session.heads import Heads, now_us
from producers.session.heartbeat_rows import HeartbeatWriter
from producers.session.publisher import Publisher
from producers.session.sharding_columns import sharding_columns
from producers.settings import ProducerState, ServerSettings, ShardProducerSettings
from producers.start.ended_log import ended_by
from producers.start.resume import ResumePoint, check_reachable
from producers.start.session_begin import begin
from topics.kafka.client import RECORD_BYTES_MAX
from topics.names import ShardTopics
from topics.progress.codec import (
    PROGRESS_KEY,
    PROGRESS_SCHEMA_TEXT,
    encode_progress,
)
from topics.progress.record import Progress, Tick
from topics.records.table_shape import ddl_schema, schema_text
from topics.schemas.ids import SchemaIds

# The longest wait for bytes: a stop is noticed within it.
WAIT_S_MAX: Final = 0.1
# While bytes keep coming, how often the log is compared with a heartbeat's executed set.
COMPARE_S: Final = 0.05
# A heartbeat's executed set that the stream does not reach within this time, though nothing comes
# any more, is looked into: GTIDs may have been added or purged by hand.
UNREACHED_S_MAX: Final = 10.0


@dataclass(slots=True)
class Committed:
    """What is known to be on Kafka."""

    position: str
    head_us: int
    end_offset: int
    lag_ms: int = 0
    rows_total: int = 0
    commits: int = 0


Report = Callable[[ProducerState, Committed, str], None]


class ShardSession:
    """Owns the connections and the Kafka producer of one life; `run` ends them in any case."""

    def __init__(
        self,
        settings: ShardProducerSettings,
        *,
        server_id: int,
        schema_ids: SchemaIds,
        transaction_timeout_ms: int,
        stop: Event,
        report: Report,
    ) -> None:
        self.committed = Committed("", 0, 0)
        self.connected = False
        self._settings = settings
        self._server: ServerSettings
        self._server_id = server_id
        self._schema_ids = schema_ids
        self._transaction_timeout_ms = transaction_timeout_ms
        self._stop = stop
        self._report = report
        self._family: ServerFamily = family_of(settings.flavor)
        self._topics = ShardTopics(settings.keyspace, settings.shard)
        self._compared_s = 0.0
        self._progress_s = 0.0
        self._heard_s = 0.0
        self._batch_s = 0.0
        self._pace = CommitPace(settings.commit_rows, settings.commit_ms)
        self._is_dry = False  # whether the last step used all bytes that had come
        self._publisher: Publisher
        self._stream: ReplicationStream
        self._watch: ServerWatch
        self._heads: Heads
        self._heartbeats: HeartbeatWriter
        self._heartbeat_note = ""
        self._decoder: Decoder
        self._copier: Copier
        self._connection: Any

    def run(self) -> None:
        """Stream until the stop. Raises Rebuild and Retry for another life, Halt and UsageError."""
        opened: list[Callable[[], None]] = []
        try:
            self._open(opened)
            while not self._stop.is_set():
                self._step()
            self._commit_rest()
        finally:
            for close in reversed(opened):
                close()

    def _open(self, opened: list[Callable[[], None]]) -> None:
        servers = ServerList.open(self._settings)
        opened.append(servers.close)
        self.connected = True
        # The first registration on a fresh cluster takes a second: not in the first row's way.
        self._schema_ids.register(PROGRESS_SCHEMA_TEXT)
        self._schema_ids.register(schema_text(ddl_schema()))
        # Only now is a predecessor fenced off: who cannot read must not end one that can.
        self._publisher = Publisher(
            self._settings.kafka, self._topics, self._transaction_timeout_ms, self._stop.is_set
        )
        opened.append(self._publisher.close)
        self._publisher.fence()
        beginning = begin(self._settings, self._topics, self._schema_ids, servers)
        point = beginning.point
        self._server = beginning.server.settings
        self._connection = beginning.server.connection
        self._heads = Heads(
            self._settings, beginning.server, self._notice, is_replica=beginning.is_replica
        )
        self.committed = Committed(str(point.position), max(point.head_us, 0), point.end_offset)
        self._report(ProducerState.STARTING, self.committed, beginning.note)
        self._stream = ReplicationStream.open(
            self._server, self._family, point.position, self._server_id
        )
        opened.append(self._stream.close)
        self._watch = ServerWatch(
            self._settings, self._topics, self._server, lambda: self.committed.position
        )
        opened.append(self._watch.close)
        self._heartbeats = HeartbeatWriter(self._settings, lambda: self._heads.is_replica)
        opened.append(self._heartbeats.close)
        with server_errors(self._server, "reading the journal of"):
            ended = ended_by(self._settings.kafka, self._topics, self._schema_ids, self._connection)
        self._decoder = self._new_decoder(point, ended)
        if not (self._settings.accept_unlogged_cascades or beginning.server.logs_cascades()):
            self._decoder.refuse_cascades()
        opened.append(self._decoder.close)
        self._copier = Copier(self._settings, self._server, self._decoder, self._publisher)
        opened.append(self._copier.close)
        self._heard_s = time.monotonic()
        self._report(ProducerState.STREAMING, self.committed, "")

    def _check_rules(self) -> None:
        """After a DDL: RuleBroken where the filter rules do not fit the server's tables now."""
        with server_errors(self._server, "checking filter rules on"):
            problems = rule_problems(self._connection, self._server.name, self._settings)
        if problems:
            raise RuleBroken("; ".join(map(str, problems)))

    def _new_decoder(self, point: ResumePoint, ended: tuple[str, ...]) -> Decoder:
        filters, vindexes = self._settings.filters, sharding_columns(self._settings.vindexes)
        decoder = Decoder(
            topic=self._topics.log,
            shard=self._settings.shard,
            flavor=self._settings.flavor.value,
            position=str(point.position),
            next_seq=point.next_seq,
            last_timestamp_us=point.clamp_us,
            last_cell_us=point.last_cell_us,
            produce=self._publisher.produce,
            record_bytes_max=RECORD_BYTES_MAX,
            on_full=self._publisher.wait_for_room,
            schema_id=self._schema_ids.register,
            verify_checksum=self._settings.verify_checksum,
            max_clock_ahead_us=self._settings.max_clock_ahead_ms * 1000,
            now_us=now_us,
            on_notice=self._notice,
            ended_by=ended,
            vindexes=vindexes,
            rules=TableFilters(filters, vindexes, self._check_rules) if filters else None,
            text_as_bytes=self._settings.text_as_bytes,
            hidden_types=server_types(self._settings, self._server, self._connection, self._notice),
        )
        decoder.set_delivery_callback(self._publisher.on_delivery)
        return decoder

    def _notice(self, text: str) -> None:
        self._report(ProducerState.STREAMING, self.committed, text)

    def _step(self) -> None:
        """Wait for bytes, decode what came, commit and promise what is due."""
        self._watch.check()
        if self._heartbeats.note != self._heartbeat_note:
            self._heartbeat_note = self._heartbeats.note
            self._notice(self._heartbeat_note)
        self._rest()
        if self._stream.wait(self._wait_s()):
            if self._stream.fill():
                self._heard_s = time.monotonic()
                self._decode()
        elif time.monotonic() - self._heard_s > STREAM_SILENCE_S_MAX:
            raise ServerLost(
                f"{self._server.name} has sent nothing for {STREAM_SILENCE_S_MAX} s, not even a "
                "heartbeat"
            )
        if self._decoder.in_transaction:
            rows = self._decoder.messages
            self._publisher.check_age(f"transaction {self._decoder.gtid} with {rows} rows so far")
        dry = self._is_dry = not self._stream.wait(0)
        self._commit_if_due(dry=dry)
        self._heartbeat_if_due(dry=dry)
        if self._copier.step(dry=dry):
            self._commit()

    def _rest(self) -> None:
        """After a commit at the live edge let rows gather until a new cell of the grid has begun.

        Waking for each transaction would cost more than its rows do.
        """
        if not self._is_dry or is_backlog(self.committed.lag_ms):
            return
        if self._decoder.in_transaction or self._decoder.messages:
            return
        pause_s = rest_s(now_us() + self._heads.clock_ahead_us)
        is_new = time.monotonic() - self._progress_s < CELL_GAP_S
        if is_new and pause_s <= self._copier.wait_s_max:
            time.sleep(pause_s)

    def _wait_s(self) -> float:
        # Only bytes of the server end a transaction, or bring the log to where the server was.
        if self._decoder.in_transaction:
            return WAIT_S_MAX
        wait_s = min(WAIT_S_MAX, self._copier.wait_s_max)
        if self._decoder.messages:
            due_s = self._progress_s + self._gap_s()
        elif self._heads.moment is not None:
            return wait_s
        else:
            due_s = self._progress_s + self._settings.heartbeat_ms / 1000
        return min(wait_s, max(0.001, due_s - time.monotonic()))

    def _decode(self) -> None:
        decoder, stream = self._decoder, self._stream
        while True:
            self._publisher.begin()
            if decoder.messages == 0:
                self._batch_s = time.monotonic()
            # What is due ends with the transaction under way: bytes rarely run out at the end of
            # one. A batch that is large enough but too young goes on by as many rows again.
            due = self._is_due()
            rows = self._pace.rows_wanted(self.committed.lag_ms)
            limit = decoder.messages + (1 if due else rows)
            if decoder.messages < rows and not due:
                limit = rows
            with self._publisher.errors("writing rows"):
                try:
                    stream.start = decoder.feed(stream.buffer, stream.start, stream.end, limit)
                except ServerError as error:
                    where = f"replication stream of {self._server.name}"
                    raise server_error(error.code, error.server_message, where) from error
            self._publisher.serve()
            if decoder.has_mark:
                self._commit()  # A mark ends its Kafka transaction.
                continue
            if decoder.in_transaction or decoder.messages < limit:
                return
            self._commit_if_due(dry=False)

    def _is_due(self) -> bool:
        """Whether the rows so far are enough, or old enough, for a commit."""
        return self._pace.is_due(
            rows=self._decoder.messages,
            size=self._decoder.bytes_produced,
            age_s=time.monotonic() - self._batch_s,
            lag_ms=self.committed.lag_ms,
        )

    def _commit_if_due(self, *, dry: bool) -> None:
        if self._decoder.in_transaction or self._decoder.messages == 0:
            return
        gap_s = time.monotonic() - self._progress_s
        if (dry and gap_s >= self._gap_s()) or self._is_due():
            self._commit()

    def _gap_s(self) -> float:
        committed = self.committed
        return dry_gap_s(self._decoder.head_us, committed.head_us, committed.lag_ms)

    def _commit_rest(self) -> None:
        """After a stop: what is whole is committed, what is not is aborted by closing."""
        if not self._decoder.in_transaction and self._decoder.messages:
            self._commit()

    def _heartbeat_if_due(self, *, dry: bool) -> None:
        """Promise the server's clock as head once the log holds all it had executed by then."""
        if self._decoder.in_transaction:
            return
        heads, now_s = self._heads, time.monotonic()
        self._promise(heads.of_row(self._decoder.heartbeat_us))
        moment = heads.ask_if_due(self._progress_s, self.committed.head_us)
        if moment is None or not (dry or now_s - self._compared_s >= COMPARE_S):
            return
        self._compared_s = now_s
        if self._decoder.reached(moment.executed):
            self._promise(heads.take_moment())
            self._commit()
        elif dry and now_s - heads.asked_s > UNREACHED_S_MAX:
            self._look_into_unreached()

    def _promise(self, head_us: int) -> None:
        if head_us > self.committed.head_us:
            self.committed.head_us = head_us
            self._decoder.advance_head(head_us)

    def _look_into_unreached(self) -> None:
        """Raise what explains that the executed set is not reached; else ask again."""
        self._commit()  # The position may have moved without a row.
        position = parse_gtid_set(self.committed.position, self._settings.flavor)
        with server_errors(self._server, "reading the executed set of"):
            history = self._family.history(self._connection)
        replica = self._heads.is_replica
        check_reachable(self._topics, self._server.name, position, history, replica=replica)
        self._heads.moment = None
        self._notice(f"{self._server.name} has executed what its binlog stream does not send yet")

    def _commit(self) -> None:
        """One Kafka transaction: the rows so far and the progress record."""
        self._publisher.begin()
        with self._publisher.errors("writing rows"):
            summary = self._decoder.take_batch()
        count = summary.last_seq - summary.first_seq + 1
        first = self._publisher.foreseen_offset if count else -1
        unflushed = count if first >= 0 else 0
        if count and not unflushed:
            first = self._publisher.flush(count)
        progress = self._progress(summary, first)
        value = encode_progress(progress, self._schema_ids)
        self._copier.write_records()
        self._publisher.commit(value, PROGRESS_KEY, progress.head_us // 1000, unflushed)
        self._progress_s = time.monotonic()
        committed = self.committed
        committed.position = progress.position
        committed.head_us = progress.head_us
        committed.end_offset = progress.end_offset
        committed.lag_ms = progress.lag_ms
        committed.rows_total += count
        committed.commits += 1
        self._report(ProducerState.STREAMING if count else ProducerState.IDLE, committed, "")
        if self._publisher.spent:
            raise PublisherSpent(f"{self._topics.log}: {self._publisher.spent}; a new one begins")

    def _progress(self, summary: BatchSummary, first_offset: int) -> Progress:
        """The record of this transaction; `first_offset` of its rows, -1 without a row."""
        end_offset = self.committed.end_offset
        server_us = now_us() + self._heads.clock_ahead_us
        lag_ms = 0
        ticks: tuple[Tick, ...] = ()
        mark = summary.mark
        if first_offset >= 0:
            # Foreseen offsets are not: where rows lie below those, the publisher is spent, and the
            # next session finds the log as it is.
            if first_offset < end_offset:
                raise LogDisagrees(
                    f"{self._topics.log}: a record was stored at offset {first_offset}, below the "
                    f"log's end {end_offset}: the topic was made anew or truncated"
                )
            shift = first_offset - summary.first_seq
            end_offset = summary.last_seq + shift + 1
            if mark is not None:
                mark = replace(mark, offset=mark.offset + shift)
            ticks = tuple(Tick(cell_us, seq + shift) for cell_us, seq in summary.ticks)
            if summary.transactions:
                lag_ms = max(0, server_us - summary.last_commit_us) // 1000
        return Progress(
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            end_offset=end_offset,
            flavor=self._settings.flavor.value,
            position=summary.position,
            head_us=max(self.committed.head_us, summary.head_us),
            ticks=ticks,
            mark=mark,
            server=self._server.name,
            server_time_us=server_us,
            lag_ms=lag_ms,
        )
